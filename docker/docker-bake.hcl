# Both images for both processors, from the root of the checkout:
#
#   docker buildx bake -f docker/docker-bake.hcl
#   docker buildx bake -f docker/docker-bake.hcl --set '*.platform=linux/amd64' --load slim
#   CUDA=12.6.3 INDEX=https://download.pytorch.org/whl/cu126 docker buildx bake -f docker/docker-bake.hcl torch
variable "NAME" { default = "cudadoctor" }
variable "DEBIAN" { default = "trixie-slim" }
variable "CUDA" { default = "13.0.3" }
variable "TORCH" { default = "2.14.1" }
variable "INDEX" { default = "https://download.pytorch.org/whl/cu130" }

group "default" {
  targets = ["slim", "torch"]
}

target "_all" {
  context    = "."
  dockerfile = "docker/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
}

target "slim" {
  inherits = ["_all"]
  target   = "slim"
  tags     = ["${NAME}:slim"]
  args     = { DEBIAN = DEBIAN }
}

target "torch" {
  inherits = ["_all"]
  target   = "torch"
  tags     = ["${NAME}:latest"]
  args     = { DEBIAN = DEBIAN, CUDA = CUDA, TORCH = TORCH, INDEX = INDEX }
}
