"""For every test: one thread of torch, as in the dashboard; two workers with more would wait for one another."""

import torch

torch.set_num_threads(1)
