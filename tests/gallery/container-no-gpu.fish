# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: This container was started without the GPU
#   The host's NVIDIA driver is loaded, but no GPU was passed to this container. Installing a
#   driver in the image does not help; CUDA needs the host's driver.
#

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
#      docker run --rm --gpus all ubuntu nvidia-smi
# Or: Install the NVIDIA Container Toolkit (on the host)
#    This step is needed only if starting the container fails with "could not select device
#    driver "" with capabilities: [[gpu]]". Restarting the container runtime stops all running
#    containers.
#      echo 'deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.asc] https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /' | sudo tee /etc/apt/sources.list.d/nvidia-container-toolkit.list >/dev/null
#      sudo curl -fsSL -o /usr/share/keyrings/nvidia-container-toolkit-keyring.asc https://nvidia.github.io/libnvidia-container/gpgkey
#      sudo apt-get update
#      sudo apt-get install -y nvidia-container-toolkit
#      sudo nvidia-ctk runtime configure --runtime=docker
#      sudo systemctl restart docker

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

printf '%s\n' 'Test a GPU container on the host, then start your own container with GPU access (outside the container):'
printf '%s\n' '  If nvidia-smi lists your GPU, add `--gpus all` to your own `docker run` command, before the image name. With Compose, add the lines shown for compose.yaml to your service.'
printf '%s\n' '  In compose.yaml:'
printf '%s\n' '    deploy:'
printf '%s\n' '      resources:'
printf '%s\n' '        reservations:'
printf '%s\n' '          devices:'
printf '%s\n' '            - driver: nvidia'
printf '%s\n' '              count: all'
printf '%s\n' '              capabilities: [gpu]'
printf '%s\n' '  docker run --rm --gpus all ubuntu nvidia-smi'
exit 1
