# cudadoctor 0.0.0, knowledge of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: The NVIDIA driver's library 580.105.08 does not match its loaded module 580.95.05
#   The module refuses libraries of another version, so nothing reaches the GPU.
#

# >>> cudadoctor: steps for root >>>
# # 1. Reboot (needs root and a reboot)
# sudo systemctl reboot
# # Or: Load the new module instead (by the administrator)
# #    Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), then,
# #    as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and `modprobe nvidia`.
# <<< cudadoctor: steps for root <<<

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

printf '%s\n' 'These steps need root. Run them yourself:'
printf '%s\n' '# 1. Reboot (needs root and a reboot)'
printf '%s\n' 'sudo systemctl reboot'
printf '%s\n' '# Or: Load the new module instead (by the administrator)'
printf '%s\n' '#    Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), then,'
printf '%s\n' '#    as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and `modprobe nvidia`.'
exit 1
