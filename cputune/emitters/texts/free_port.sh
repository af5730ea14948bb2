port=$("$python" -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
