# mmjax on NVIDIA GPUs. The wheels of jax[cuda13] bring CUDA, cuDNN and NCCL; the host needs only its driver and the
# NVIDIA container toolkit:
#     docker build -t mmjax .
#     docker run --gpus=all --shm-size=16g -v "$PWD/runs:/work/runs" mmjax train --workdir=runs/first
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /work

COPY . /opt/mmjax
RUN pip install '/opt/mmjax[cuda13,audio,chat,parquet,remote,service]'

ENTRYPOINT ["mmjax"]
CMD ["--help"]
