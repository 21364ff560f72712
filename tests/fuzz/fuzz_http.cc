// The requests of clients to a port of common/http, over a real connection. No bytes stop the server, no body
// is larger than its limit, and no protected handler runs unless the bytes contain the token.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "common/http/http_server.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/sockets.h"

namespace {

constexpr char kToken[] = "Bearer open-sesame";
constexpr size_t kMostBody = 2 << 20;

std::atomic<int> guarded_runs = 0;

std::unique_ptr<bfio::HttpServer> Serve() {
  bfio::HttpServer::Options options;
  options.listen = "127.0.0.1:0";
  options.authenticate = [](const bfio::HttpCaller& caller) -> absl::StatusOr<std::string> {
    if (caller.authorization == kToken) return "fuzzer";
    return absl::UnauthenticatedError("no");
  };
  auto server = bfio::HttpServer::Bind(options);
  bfio::fuzz::Check(server.ok(), "a free port can be bound");
  const auto echo = [](const bfio::HttpRequest& request) {
    bfio::fuzz::Check(request.body.size() <= kMostBody, "a body has a bound");
    ++guarded_runs;
    bfio::HttpReply reply;
    reply.body = request.body;
    for (const auto& [name, value] : request.query) reply.body += name + "=" + value;
    return reply;
  };
  (*server)->Get("/guarded", echo);
  (*server)->Post("/guarded", echo);
  (*server)->Get(
      "/open", [](const bfio::HttpRequest&) { return bfio::HttpReply{}; },
      bfio::HttpServer::Access::kEverybody);
  (*server)->Start();
  return *std::move(server);
}

// Sends `bytes` and reads until the server closes. A server that never does is a timeout of libFuzzer's: a
// bound here would also hit where other programs keep the processor from this one.
std::string Exchange(int socket, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // the server has closed the connection
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(socket, SHUT_WR);
  std::string reply;
  char buffer[4096];
  while (true) {
    const ssize_t got = recv(socket, buffer, sizeof(buffer), 0);
    if (got <= 0) return reply;
    reply.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<bfio::HttpServer> server = Serve();
  const absl::string_view bytes = bfio::fuzz::Text(data, size);
  guarded_runs = 0;
  int socket = -1;
  // The fuzzer's own timer interrupts it.
  do socket = bfio::testing::ConnectTo(server->address());
  while (socket < 0 && errno == EINTR);
  bfio::fuzz::Check(socket >= 0, "the server listens");
  const std::string reply = Exchange(socket, bytes);
  close(socket);
  bfio::fuzz::Check(reply.empty() || absl::StartsWith(reply, "HTTP/1."), "an answer is HTTP");
  bfio::fuzz::Check(guarded_runs == 0 || absl::StrContains(bytes, kToken),
                    "no caller enters without the token");
  return 0;
}
