"""Headers of transactions that a client or an admin sends; the broker's question for the state is in `callbacks`."""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation


class EndTransaction(Header, frozen=True):
    """Commits (8) or rolls back (12) a half message, or says that the state is unknown (0).

    The two offsets are those of the half message, as its send was answered.
    """

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class ResumeCheckHalfMessage(Header, frozen=True):
    """Has a half message checked again whose checks were given up."""

    topic: str
    msg_id: str


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.END_TRANSACTION, EndTransaction, NoHeader, oneway=True),
    Operation(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage, NoHeader, "admin → broker"),
)
