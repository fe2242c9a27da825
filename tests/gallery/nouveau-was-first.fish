# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#
# error: The nouveau driver holds the GPU, so NVIDIA's driver is not loaded (driver-not-loaded)
#   NVIDIA's driver is installed, and CUDA needs it; a GPU has one driver at a time.
#

# 1. Keep nouveau from taking the GPU [needs root and a reboot]
#    cures: driver-not-loaded
#    in /etc/modprobe.d/blacklist-nouveau.conf:
#      blacklist nouveau
#      options nouveau modeset=0
#    then:
#      sudo update-initramfs -u

# Then see whether it helped:
#    cudadoctor check --python /home/ada/venv/bin/python
