"""A real broker with users, and the clients that log in to it, for tests of who may do what."""

from coordinator.broker.broker import Broker, connect
from coordinator.control.processes import Processes
from coordinator.joining.accounts import Accounts
from coordinator.joining.users import Users


class GuardedBroker:
    def __init__(self, state):
        self.users = Users(Accounts(state))
        self.broker = Broker(state, Processes(state), users=self.users)
        self.broker.start()
        self.client = connect(self.broker.url)
        self.clients = []

    def log_in(self, user, password):
        self.clients.append(connect(self.broker.url_of(f"{user}:{password}")))
        return self.clients[-1]

    def close(self):
        for client in [self.client, *self.clients]:
            client.close()
        self.broker.stop()
