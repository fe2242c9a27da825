# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: nouveau is using the GPU, so the NVIDIA driver cannot load
#   Only one driver can use a GPU at a time. CUDA needs the NVIDIA driver, which is already
#   installed.
#
$ErrorActionPreference = 'Stop'

# >>> cudadoctor: steps for root >>>
# # 1. Disable the nouveau driver (needs root and a reboot)
# Set-Content -LiteralPath '/etc/modprobe.d/blacklist-nouveau.conf' -Value 'blacklist nouveau', 'blacklist nova_core', 'options nouveau modeset=0'
# & 'update-initramfs' '-u'
# Restart-Computer
# <<< cudadoctor: steps for root <<<

# Then check again:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'

Write-Output 'These steps need root. Run them yourself:'
Write-Output '# 1. Disable the nouveau driver (needs root and a reboot)'
Write-Output 'Set-Content -LiteralPath ''/etc/modprobe.d/blacklist-nouveau.conf'' -Value ''blacklist nouveau'', ''blacklist nova_core'', ''options nouveau modeset=0'''
Write-Output '& ''update-initramfs'' ''-u'''
Write-Output 'Restart-Computer'
exit 1
