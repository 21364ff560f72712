// Connections from plain sockets to a gRPC server behind a ConnectionListener.
#include "common/net/connection_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/sockets.h"

namespace bfio {
namespace {

class Socket {
 public:
  explicit Socket(uint16_t port) : fd_(testing::ConnectTo(absl::StrCat("127.0.0.1:", port))) {
    EXPECT_GE(fd_, 0);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  void WriteText(const std::string& text) { (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Waits until the peer closes the connection.
  void AwaitEnd() {
    char buffer[4096];
    while (recv(fd_, buffer, sizeof(buffer), 0) > 0) {
    }
  }

 private:
  const int fd_;
};

class ConnectionListenerTest : public ::testing::Test {
 protected:
  void Start(ConnectionListener::Limits limits, const char* host = "127.0.0.1") {
    auto listener = ConnectionListener::Bind({host, 0}, limits);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    authenticator_.set_on_accepted(
        [this](const std::string& peer, bool) { listener_->Authenticated(peer, gateway_); });
    grpc::ServerBuilder builder;
    listener_->AddTo(builder, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    listener_->Serve();
  }
  ~ConnectionListenerTest() override {
    if (listener_ != nullptr) listener_->Stop();
    if (server_ != nullptr) server_->Shutdown();
  }
  void Await(auto condition) {
    while (!condition(listener_->counts())) std::this_thread::yield();
  }
  void AwaitConnections(size_t count) {
    Await([=](const auto& counts) { return counts.connections == count; });
  }
  // Makes a health check call over a new connection.
  grpc::Status Check(const std::string& address) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = grpc::health::v1::Health::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, {}, &response);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", listener_->port()); }

  // A service whose calls report their authenticated caller to the listener, as the programs' services do.
  class PeerNameService final : public CallService {
   public:
    explicit PeerNameService(Authenticator* authenticator) {
      using Reply = grpc::health::v1::HealthCheckResponse;
      Add("/grpc.health.v1.Health/Check", [=](grpc::CallbackServerContext* context) {
        const absl::Status known = authenticator->Check(*context).status();
        auto* const call = UnaryCall<grpc::health::v1::HealthCheckRequest, Reply>::Create(context);
        known.ok() ? call->Reply(Reply()) : call->Reply(known);
        return call;
      });
    }
  };
  std::atomic<bool> gateway_ = false;
  Authenticator authenticator_{"test", nullptr};
  PeerNameService service_{&authenticator_};
  std::unique_ptr<ConnectionListener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ConnectionListenerTest, ACallAuthenticatesItsConnectionAndItsEndIsCounted) {
  Start({});
  EXPECT_TRUE(Check(address()).ok());
  EXPECT_EQ(listener_->counts().unauthenticated, 0u);
  AwaitConnections(0);
  EXPECT_EQ(listener_->counts().dropped, 0u);
}

TEST_F(ConnectionListenerTest, TheAnyAddressAcceptsBothFamilies) {
  Start({}, "0.0.0.0");
  EXPECT_TRUE(Check(address()).ok());
  if (const int six = socket(AF_INET6, SOCK_STREAM, 0); six >= 0) {
    close(six);
    const grpc::Status status = Check(absl::StrCat("[::1]:", listener_->port()));
    // The call fails on a machine that supports IPv6 but has no IPv6 address.
    if (status.ok()) {
      EXPECT_EQ(listener_->counts().unauthenticated, 0u);
    }
  }
}

TEST_F(ConnectionListenerTest, UnauthenticatedConnectionsThatSendTooMuchAreDropped) {
  Start({.unauthenticated_bytes = 100'000});
  Socket flood(listener_->port());
  // Input that gRPC keeps reading: the preface of HTTP/2, then a frame.
  flood.WriteText("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  flood.WriteText(std::string("\0\0\0\4\0\0\0\0\0", 9));
  Socket quiet(listener_->port());
  AwaitConnections(2);
  // Pings: each is answered, and none belongs to a call.
  const std::string ping("\0\0\x8\6\1\0\0\0\0........", 17);
  std::string many;
  for (int i = 0; i < 4096; ++i) many += ping;
  std::thread writer([&] {
    for (int i = 0; i < 4; ++i) flood.WriteText(many);
  });
  Await([](const auto& counts) { return counts.dropped == 1; });
  flood.AwaitEnd();
  writer.join();
  AwaitConnections(1);
  EXPECT_TRUE(Check(address()).ok()) << "others come in";
}

TEST_F(ConnectionListenerTest, ConnectionsWithoutACallAreDropped) {
  Start({.patience = absl::Milliseconds(100)});
  Socket idle(listener_->port());
  idle.AwaitEnd();
  Await([](const auto& counts) { return counts.connections == 0 && counts.dropped == 1; });
}

// However many there are, also of the caller's own address.
TEST_F(ConnectionListenerTest, SilentConnectionsDelayNoCaller) {
  Start(
      {.unauthenticated = 4, .outside = 64, .patience = absl::Hours(1), .crowded_patience = absl::Hours(1)});
  std::vector<std::unique_ptr<Socket>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Socket>(listener_->port()));
  EXPECT_TRUE(Check(address()).ok());
  EXPECT_EQ(listener_->counts().refused, 0u);
  // Beyond the address's share the oldest has ended.
  idle.front()->AwaitEnd();
  Await([](const auto& counts) { return counts.unauthenticated <= 32; });
}

TEST_F(ConnectionListenerTest, OfConnectionsThatWaitTheNewestIsNext) {
  Start({.unauthenticated = 4, .patience = absl::Hours(1), .crowded_patience = absl::Seconds(1)});
  std::vector<std::unique_ptr<Socket>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<Socket>(listener_->port()));
    idle.back()->WriteText("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }
  EXPECT_TRUE(Check(address()).ok());
  EXPECT_GE(listener_->counts().dropped, 1u) << "its address had its share";
  EXPECT_LT(listener_->counts().dropped, 50u);
}

TEST_F(ConnectionListenerTest, AConnectionWithTooManyNewCallsEndsUnlessItIsAGateways) {
  Start({.calls_per_s = 1, .calls_at_once = 100});
  const auto channel = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  const auto call = [&] {
    int served = 0;
    for (bool ok = true; ok && served < 1000; served += ok ? 1 : 0) {
      grpc::ClientContext context;
      grpc::health::v1::HealthCheckResponse response;
      ok = stub->Check(&context, {}, &response).ok();
    }
    return served;
  };
  gateway_ = true;
  EXPECT_EQ(call(), 1000);
  gateway_ = false;
  const int served = call();
  EXPECT_GE(served, 100);
  EXPECT_LT(served, 200);
  EXPECT_EQ(listener_->counts().dropped, 1u);
  EXPECT_TRUE(Check(address()).ok()) << "another connection";
}

TEST_F(ConnectionListenerTest, ConnectionsBeyondTheAddressesShareAreClosedAtOnce) {
  Start({.connections = 5});
  std::vector<std::unique_ptr<Socket>> some;
  for (int i = 0; i < 3; ++i) some.push_back(std::make_unique<Socket>(listener_->port()));
  AwaitConnections(3);
  Socket(listener_->port()).AwaitEnd();
  EXPECT_EQ(listener_->counts().refused, 1u);
  some.pop_back();
  AwaitConnections(2);
  EXPECT_TRUE(Check(address()).ok());
}

TEST(ConnectionListenerBind, APortThatIsTakenIsRefused) {
  const auto first = ConnectionListener::Bind({"127.0.0.1", 0});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ConnectionListener::Bind({"127.0.0.1", (*first)->port()}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ConnectionListener::Bind({"192.0.2.1", 0}).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bfio
