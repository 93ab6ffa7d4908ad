"""Settings of all tests of the core: one thread, since the tensors are tiny and other workers share the machine."""

import torch

torch.set_num_threads(1)
