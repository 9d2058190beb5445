"""What the worker says no to.

WorkerError        one line for the person who starts it, exit code 1
InvalidRequest     an answer in the OpenAI error shape for the client
"""


class WorkerError(Exception):
    pass


class InvalidRequest(Exception):  # noqa: N818 - named for what it is
    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
