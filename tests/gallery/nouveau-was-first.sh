#!/bin/sh
# cudadoctor 0.0.0, knowledge of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: The nouveau driver holds the GPU, so NVIDIA's driver is not loaded
#   NVIDIA's driver is installed, and CUDA needs it; a GPU has one driver at a time.
#
set -eu

# 1. Keep nouveau from taking the GPU (needs root and a reboot)
#    In /etc/modprobe.d/blacklist-nouveau.conf:
#      blacklist nouveau
#      options nouveau modeset=0
#      sudo update-initramfs -u
#      sudo reboot

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

cat <<'END'
Keep nouveau from taking the GPU (needs root and a reboot):
  In /etc/modprobe.d/blacklist-nouveau.conf:
    blacklist nouveau
    options nouveau modeset=0
  sudo update-initramfs -u
  sudo reboot
END
exit 1
