# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: Driver/library version mismatch (module 580.95.05, libraries 580.105.08)
#   The driver was updated, but the machine has not been restarted since.
#

# >>> cudadoctor: steps for root >>>
# # 1. Restart the machine (needs root)
# sudo systemctl reboot
# # Or: Reload the driver without rebooting (needs root)
# #    This works only if no program is using the GPU, not even the desktop: `sudo lsof
# #    /dev/nvidia*` lists the programs that use it.
# #      sudo systemctl stop nvidia-persistenced
# #      sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia
# #      sudo modprobe nvidia
# #      sudo modprobe nvidia_uvm
# #      sudo systemctl start nvidia-persistenced
# <<< cudadoctor: steps for root <<<

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

printf '%s\n' 'These steps need root. Run them yourself:'
printf '%s\n' '# 1. Restart the machine (needs root)'
printf '%s\n' 'sudo systemctl reboot'
printf '%s\n' '# Or: Reload the driver without rebooting (needs root)'
printf '%s\n' '#    This works only if no program is using the GPU, not even the desktop: `sudo lsof'
printf '%s\n' '#    /dev/nvidia*` lists the programs that use it.'
printf '%s\n' '#      sudo systemctl stop nvidia-persistenced'
printf '%s\n' '#      sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia'
printf '%s\n' '#      sudo modprobe nvidia'
printf '%s\n' '#      sudo modprobe nvidia_uvm'
printf '%s\n' '#      sudo systemctl start nvidia-persistenced'
exit 1
