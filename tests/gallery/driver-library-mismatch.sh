#!/bin/sh
# cudadoctor 0.0.0, knowledge of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: The NVIDIA driver's library 580.105.08 does not match its loaded module 580.95.05
#   The module refuses libraries of another version, so nothing reaches the GPU.
#
set -eu

# >>> cudadoctor: steps for root >>>
# # 1. Reboot (needs root and a reboot)
# sudo systemctl reboot
# # Or: Load the new module instead (by the administrator)
# #    Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), then,
# #    as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and `modprobe nvidia`.
# <<< cudadoctor: steps for root <<<

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

cat <<'END'
These steps need root. Run them yourself:
# 1. Reboot (needs root and a reboot)
sudo systemctl reboot
# Or: Load the new module instead (by the administrator)
#    Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), then,
#    as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and `modprobe nvidia`.
END
exit 1
