"""Decodes video frames out of buffers that live in native memory."""

import ctypes

FRAME_BYTES = 192


class FrameStore:
    def __init__(self, frames):
        self._owned = {}
        self._addresses = [0] * frames

    def put(self, number, data):
        buffer = ctypes.create_string_buffer(data, FRAME_BYTES)
        self._owned[number] = buffer
        self._addresses[number] = ctypes.addressof(buffer)

    def decode(self, number):
        frame = ctypes.create_string_buffer(FRAME_BYTES)
        ctypes.memmove(frame, self._addresses[number], FRAME_BYTES)
        return bytearray(frame.raw)
