# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: This container was started without the GPU
#   The host's NVIDIA driver is loaded, but no GPU was passed to this container. Installing a
#   driver in the image does not help; CUDA needs the host's driver.
#
$ErrorActionPreference = 'Stop'

# 1. Test a GPU container on the host, then start your own container with GPU access (outside
# the container)
#    If nvidia-smi lists your GPU, add `--gpus all` to your own `docker run` command, before the
#    image name. With Compose, add the lines shown for compose.yaml to your service.
#    In compose.yaml:
#      deploy:
#        resources:
#          reservations:
#            devices:
#              - driver: nvidia
#                count: all
#                capabilities: [gpu]
#      & 'docker' 'run' '--rm' '--gpus' 'all' 'ubuntu' 'nvidia-smi'
# Or: Install the NVIDIA Container Toolkit (on the host)
#    This step is needed only if starting the container fails with "could not select device
#    driver "" with capabilities: [[gpu]]". Restarting the container runtime stops all running
#    containers.
#      Set-Content -LiteralPath '/etc/apt/sources.list.d/nvidia-container-toolkit.list' -Value 'deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.asc] https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /'
#      & 'curl' '-fsSL' '-o' '/usr/share/keyrings/nvidia-container-toolkit-keyring.asc' 'https://nvidia.github.io/libnvidia-container/gpgkey'
#      & 'apt-get' 'update'
#      & 'apt-get' 'install' '-y' 'nvidia-container-toolkit'
#      & 'nvidia-ctk' 'runtime' 'configure' '--runtime=docker'
#      & 'systemctl' 'restart' 'docker'

# Then check again:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'

Write-Output 'Test a GPU container on the host, then start your own container with GPU access (outside the container):'
Write-Output '  If nvidia-smi lists your GPU, add `--gpus all` to your own `docker run` command, before the image name. With Compose, add the lines shown for compose.yaml to your service.'
Write-Output '  In compose.yaml:'
Write-Output '    deploy:'
Write-Output '      resources:'
Write-Output '        reservations:'
Write-Output '          devices:'
Write-Output '            - driver: nvidia'
Write-Output '              count: all'
Write-Output '              capabilities: [gpu]'
Write-Output '  & ''docker'' ''run'' ''--rm'' ''--gpus'' ''all'' ''ubuntu'' ''nvidia-smi'''
exit 1
