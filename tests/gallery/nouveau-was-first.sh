#!/bin/sh
# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: nouveau is using the GPU, so the NVIDIA driver cannot load
#   Only one driver can use a GPU at a time. CUDA needs the NVIDIA driver, which is already
#   installed.
#
set -eu

# >>> cudadoctor: steps for root >>>
# # 1. Disable the nouveau driver (needs root and a reboot)
# printf '%s\n' 'blacklist nouveau' 'blacklist nova_core' 'options nouveau modeset=0' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf >/dev/null
# sudo update-initramfs -u
# sudo reboot
# <<< cudadoctor: steps for root <<<

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

cat <<'END'
These steps need root. Run them yourself:
# 1. Disable the nouveau driver (needs root and a reboot)
printf '%s\n' 'blacklist nouveau' 'blacklist nova_core' 'options nouveau modeset=0' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf >/dev/null
sudo update-initramfs -u
sudo reboot
END
exit 1
