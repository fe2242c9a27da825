# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: Driver/library version mismatch (module 580.95.05, libraries 580.105.08)
#   The driver was updated, but the machine has not been restarted since.
#
$ErrorActionPreference = 'Stop'

# >>> cudadoctor: steps for root >>>
# # 1. Restart the machine (needs root)
# & 'systemctl' 'reboot'
# # Or: Reload the driver without rebooting (needs root)
# #    This works only if no program is using the GPU, not even the desktop: `sudo lsof
# #    /dev/nvidia*` lists the programs that use it.
# #      & 'systemctl' 'stop' 'nvidia-persistenced'
# #      & 'modprobe' '-r' 'nvidia_uvm' 'nvidia_drm' 'nvidia_modeset' 'nvidia'
# #      & 'modprobe' 'nvidia'
# #      & 'modprobe' 'nvidia_uvm'
# #      & 'systemctl' 'start' 'nvidia-persistenced'
# <<< cudadoctor: steps for root <<<

# Then check again:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'

Write-Output 'These steps need root. Run them yourself:'
Write-Output '# 1. Restart the machine (needs root)'
Write-Output '& ''systemctl'' ''reboot'''
Write-Output '# Or: Reload the driver without rebooting (needs root)'
Write-Output '#    This works only if no program is using the GPU, not even the desktop: `sudo lsof'
Write-Output '#    /dev/nvidia*` lists the programs that use it.'
Write-Output '#      & ''systemctl'' ''stop'' ''nvidia-persistenced'''
Write-Output '#      & ''modprobe'' ''-r'' ''nvidia_uvm'' ''nvidia_drm'' ''nvidia_modeset'' ''nvidia'''
Write-Output '#      & ''modprobe'' ''nvidia'''
Write-Output '#      & ''modprobe'' ''nvidia_uvm'''
Write-Output '#      & ''systemctl'' ''start'' ''nvidia-persistenced'''
exit 1
