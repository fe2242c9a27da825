# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#
# error: The NVIDIA driver's library 580.105.08 does not match its loaded module 580.95.05
#     (driver-library-mismatch)
#   The module refuses libraries of another version, so nothing reaches the GPU.
#
$ErrorActionPreference = 'Stop'

# 1. Reboot [needs root and a reboot]
#    cures: driver-library-mismatch
#      & 'systemctl' 'reboot'
# or: Load the new module instead [by the administrator]
#    cures: driver-library-mismatch
#    Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), then,
#    as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and `modprobe nvidia`.

# Then see whether it helped:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'
