"""Client of a bfio router.

    import bfio
    with bfio.Client("127.0.0.1:50051") as client:
        for tokens in client.generate([1, 2, 3], max_new_tokens=20):
            print(tokens.first_index, tokens.ids)

bfio.aio.Client is the same for asyncio, bfio.Admin the admin API. Retries, resumes and what is checked: docs/reference/api.md.
"""
import importlib.metadata

from bfio import aio
from bfio.admin import Admin
from bfio.client import Client, Stream
from bfio.request import Error, Finish, Result, Retry, Sampling, Tokens

__version__ = importlib.metadata.version("bfio")
__all__ = ["Admin", "Client", "Error", "Finish", "Result", "Retry", "Sampling", "Stream", "Tokens", "aio"]
