"""An extension of the tests' Jupyter server: says which sockets of kernels send at once.

Only the server itself can see that of its sockets.
"""

from __future__ import annotations

import socket
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.utils import url_path_join


class SocketsHandler(JupyterHandler):
    """``GET`` of ``kernel-sockets``: for each open one whether Nagle's algorithm is off."""

    def get(self) -> None:
        flag = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
        pages: list[Any] = [
            each.websocket_handler.ws_connection
            for each in ZMQChannelsWebsocketConnection._open_sockets
        ]
        at_once = [bool(each.stream.socket.getsockopt(*flag)) for each in pages]
        self.finish({"at_once": at_once})


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    address = url_path_join(server.web_app.settings["base_url"], "kernel-sockets")
    server.web_app.add_handlers(".*$", [(address, SocketsHandler)])
