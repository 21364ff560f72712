#include "common/http/http_server.h"

#include <gmock/gmock.h>
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/testing/sockets.h"

namespace bfio {
namespace {

int PortOf(const HttpServer& server) {
  const std::vector<std::string> parts = absl::StrSplit(server.address(), ':');
  return std::stoi(parts.back());
}

std::unique_ptr<HttpServer> Serving(HttpServer::Authenticate authenticate = nullptr) {
  auto server = HttpServer::Bind({"127.0.0.1:0", std::move(authenticate), "", "", ""});
  EXPECT_TRUE(server.ok()) << server.status();
  (*server)->Get("/metrics", [](const HttpRequest&) { return HttpReply{200, "text/plain", "figures\n"}; });
  (*server)->Get(
      "/open",
      [](const HttpRequest&) {
        return HttpReply{200, "text/plain", "for all\n"};
      },
      HttpServer::Access::kEverybody);
  (*server)->Get("/sick", [](const HttpRequest&) { return HttpReply{503, "text/plain", "not now\n"}; });
  (*server)->Post("/act", [](const HttpRequest& request) {
    return HttpReply{200, "text/plain", absl::StrCat("did ", request.body)};
  });
  (*server)->GetStream("/events", "text/event-stream", [](const HttpRequest& request) {
    const auto from = request.query.find("from");
    auto next = std::make_shared<int>(from == request.query.end() ? 0 : std::stoi(from->second));
    return [next]() -> std::optional<std::string> {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return absl::StrCat((*next)++, "\n");
    };
  });
  (*server)->Start();
  return *std::move(server);
}

class HttpServerTest : public ::testing::Test {
 protected:
  // Instead of the server without authentication.
  void Serve(HttpServer::Authenticate authenticate) {
    server_ = Serving(std::move(authenticate));
    port_ = PortOf(*server_);
  }
  // A client with a connection of its own.
  httplib::Client NewClient() const { return httplib::Client("127.0.0.1", port_); }
  // Whether a new client gets a reply, within a minute.
  bool Answers() const {
    httplib::Client client = NewClient();
    client.set_read_timeout(60);
    const auto reply = client.Get("/metrics");
    return reply && reply->body == "figures\n";
  }

  std::unique_ptr<HttpServer> server_ = Serving();
  int port_ = PortOf(*server_);
  httplib::Client client_ = NewClient();
};

TEST_F(HttpServerTest, AnswersItsPathsAndNothingElse) {
  EXPECT_EQ(client_.Get("/metrics")->body, "figures\n");
  const std::pair<const char*, int> gets[] = {
      {"/metrics?x=1", 200}, {"/sick", 503}, {"/", 404}, {"/metrics/../../etc/passwd", 404}, {"/act", 405}};
  for (const auto& [path, status] : gets) EXPECT_EQ(client_.Get(path)->status, status) << path;
  EXPECT_EQ(client_.Post("/metrics", "x", "text/plain")->status, 405);
  EXPECT_EQ(client_.Delete("/metrics")->status, 405);
  EXPECT_EQ(client_.Head("/metrics")->status, 200);
}

TEST_F(HttpServerTest, RepliesAreWholeAndNotCompressed) {
  std::string many = "bytes=0-";
  for (int i = 0; i < 500; ++i) many += ",0-";
  const httplib::Headers headers[] = {{{"Accept-Encoding", "br"}},
                                      {{"Accept-Encoding", "gzip"}},
                                      {{"Accept-Encoding", "gzip, deflate, br, zstd"}},
                                      {{"Range", "bytes=0-,0-,0-,0-"}},
                                      {{"Range", many}}};
  for (const httplib::Headers& header : headers) {
    SCOPED_TRACE(header.begin()->second);
    const auto reply = client_.Get("/metrics", header);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "figures\n");
    EXPECT_FALSE(reply->has_header("Content-Encoding"));
  }
}

// A socket that connects to `port`, from another address of this machine if `other`.
int ConnectedTo(int port, int flags = 0, bool other = false) {
  const int fd = testing::ConnectTo(absl::StrCat("127.0.0.1:", port), other ? "127.0.0.2" : "", flags);
  EXPECT_GE(fd, 0);
  return fd;
}

// Sends `bytes`. Returns everything that the server replies until it closes the connection.
std::string Exchange(int port, const std::string& bytes) {
  const int fd = ConnectedTo(port);
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  std::string all;
  char buffer[4096];
  for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
    all.append(buffer, static_cast<size_t>(got));
  close(fd);
  return all;
}

TEST_F(HttpServerTest, RequestSmugglingIsRefused) {
  const std::string hidden =
      "POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 2\r\n\r\n{}";
  const std::string length = absl::StrCat("Content-Length: ", hidden.size(), "\r\n");
  for (const char* method : {"GET", "HEAD", "OPTIONS", "BREW"}) {
    for (const char* path : {"/metrics", "/nothing"}) {
      for (const std::string& framing :
           {length, std::string("Transfer-Encoding: chunked\r\n"), absl::StrCat("Range: what\r\n", length)}) {
        const std::string reply = Exchange(
            port_,
            absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n", framing, "\r\n", hidden));
        EXPECT_TRUE(absl::StartsWith(reply, "HTTP/1.1 4")) << reply;
        EXPECT_FALSE(absl::StrContains(reply, "did")) << method << " " << framing << reply;
      }
    }
  }
  // Two readers would take different parts of these for the body.
  for (const std::string& framing :
       {"Content-Length: 0\r\n" + length, absl::StrCat("Content-Length: 0, ", hidden.size(), "\r\n"),
        std::string("Content-Length: 0x99\r\n"), std::string("Content-Length: +0\r\n"),
        std::string("Content-Length: -1\r\n"), std::string("Content-Length: 18446744073709551616\r\n"),
        std::string("Content-Length: 0\r\nTransfer-Encoding : chunked\r\n")}) {
    const std::string reply = Exchange(
        port_, absl::StrCat("POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                            framing, "\r\n", hidden));
    EXPECT_TRUE(absl::StartsWith(reply, "HTTP/1.1 400")) << framing << reply;
    EXPECT_FALSE(absl::StrContains(reply, "did")) << framing << reply;
  }
}

TEST_F(HttpServerTest, TwoServersCannotShareAPort) {
  const auto second = HttpServer::Bind({server_->address(), nullptr, "", "", ""});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
  const std::string address = server_->address();
  server_.reset();
  EXPECT_TRUE(HttpServer::Bind({address, nullptr, "", "", ""}).ok()) << "at once";
}

// The listening socket of this process on `port`.
int ListenerOf(int port) {
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1 &&
        testing::PortOf(fd) == port)
      return fd;
  }
  return -1;
}

TEST_F(HttpServerTest, ALostPortIsOpenedAgainAndAServerWithoutOneCanEnd) {
  const auto lose = [&] {
    int listener = -1;
    while (listener < 0) listener = ListenerOf(port_);
    ASSERT_EQ(shutdown(listener, SHUT_RDWR), 0) << "accept() fails with EINVAL from here on";
  };
  for (int round = 0; round < 2; ++round) {
    // A client that reads a stream does not delay closing the port.
    std::atomic<bool> watching = false;
    std::thread watcher(
        [&] { NewClient().Get("/events", [&](const char*, size_t) { return watching = true; }); });
    while (!watching) std::this_thread::yield();
    lose();
    while (!NewClient().Get("/metrics")) std::this_thread::yield();
    watcher.join();
  }
  lose();
  server_.reset();
}

TEST_F(HttpServerTest, AuthenticationPrecedesTheHandler) {
  Serve([](const HttpCaller& caller) -> absl::StatusOr<std::string> {
    EXPECT_EQ(caller.address, "127.0.0.1");
    if (caller.authorization.empty()) return absl::UnauthenticatedError("a token is needed");
    if (caller.authorization != "Bearer right") return absl::PermissionDeniedError("not yours");
    if (caller.acts) return absl::PermissionDeniedError("the caller may read, not operate");
    return "root";
  });
  httplib::Client client = NewClient();
  EXPECT_EQ(client.Get("/open")->body, "for all\n");
  const auto without = client.Get("/metrics");
  EXPECT_EQ(without->status, 401);
  EXPECT_EQ(without->body, "a token is needed\n");
  EXPECT_EQ(without->get_header_value("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(client.Get("/metrics", {{"Authorization", "Bearer wrong"}})->status, 403);
  EXPECT_EQ(client.Get("/metrics", {{"Authorization", "Bearer right"}})->body, "figures\n");
  EXPECT_EQ(client.Post("/act", {{"Authorization", "Bearer right"}}, "{}", "application/json")->status, 403);
}

// Without a token 63 KB of multipart headers cost 5 s in a regular expression of httplib's. The bodies never
// come, so a server that reads one before it decides does not answer.
TEST_F(HttpServerTest, DecidesByTheHeadersBeforeItReadsABody) {
  Serve([](const HttpCaller& caller) -> absl::StatusOr<std::string> {
    if (caller.authorization != "Bearer right") return absl::UnauthenticatedError("a token is needed");
    return "root";
  });
  const struct {
    const char *line, *headers, *status;
  } kCases[] = {{"POST /act", "Content-Type: application/json\r\n", "401"},
                {"POST /act", "Content-Type: multipart/form-data; boundary=a\r\n", "401"},
                {"POST /act",
                 "Content-Type: multipart/form-data; boundary=a\r\nAuthorization: Bearer right\r\n", "415"},
                {"POST /act",
                 "Content-Type: application/x-www-form-urlencoded\r\nAuthorization: Bearer right\r\n", "415"},
                {"POST /nothing", "Content-Type: multipart/form-data; boundary=a\r\n", "404"},
                {"PUT /act", "Content-Type: multipart/form-data; boundary=a\r\n", "405"},
                {"PATCH /act", "Content-Type: multipart/form-data; boundary=a\r\n", "405"},
                {"DELETE /metrics", "Content-Type: multipart/form-data; boundary=a\r\n", "405"},
                {"PRI /act", "Content-Type: multipart/form-data; boundary=a\r\n", "400"}};
  for (const auto& [line, headers, status] : kCases) {
    const std::string reply = Exchange(
        port_,
        absl::StrCat(line, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 63000\r\n", headers, "\r\n"));
    EXPECT_TRUE(absl::StartsWith(reply, absl::StrCat("HTTP/1.1 ", status))) << line << headers << reply;
  }
}

TEST_F(HttpServerTest, PostsMustBeJsonAndOnlyWhereAccepted) {
  EXPECT_EQ(client_.Post("/act", "{}", "application/json")->body, "did {}");
  EXPECT_EQ(client_.Post("/act", "{}", "text/plain")->status, 415) << "a page from elsewhere can send this";
  EXPECT_EQ(client_.Post("/act", std::string(100 << 10, ' '), "application/json")->status, 413);
}

TEST_F(HttpServerTest, ChunkedAndCompressedBodiesAreNotRead) {
  // A server that reads the whole body receives more than 256 MiB.
  int64_t sent = 0;
  const auto chunked = client_.Post(
      "/act",
      [&](size_t, httplib::DataSink& sink) {
        const std::string block(64 << 10, ' ');
        sent += static_cast<int64_t>(block.size());
        if (sent > 256 << 20) sink.done();
        return sink.write(block.data(), block.size());
      },
      "application/json");
  EXPECT_LT(sent, 256 << 20);
  if (chunked) {
    EXPECT_EQ(chunked->status, 415);
  }
  EXPECT_EQ(NewClient().Post("/act", {{"Content-Encoding", "gzip"}}, "{}", "application/json")->status, 415);
}

TEST_F(HttpServerTest, AForeignHostNameIsNotServed) {
  EXPECT_EQ(client_.Get("/metrics", {{"Host", "rebound.example:80"}})->status, 403);
  for (const char* host : {"localhost", "localhost:9", "127.0.0.1:9", "[::1]:9", "10.0.0.7"}) {
    EXPECT_EQ(client_.Get("/metrics", {{"Host", host}})->status, 200) << host;
  }
}

TEST_F(HttpServerTest, StreamsRunUntilTheReaderOrTheServerCloses) {
  std::string head;
  client_.Get("/events?from=5", [&](const char* data, size_t size) {
    head.append(data, size);
    return head.size() < 30;
  });
  EXPECT_TRUE(absl::StartsWith(head, "5\n6\n7\n8\n")) << head;

  std::atomic<int> running{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < HttpServer::kMaxStreams + 3; ++t) {
    threads.emplace_back([&] {
      bool counted = false;
      NewClient().Get(
          "/events",
          [&](const httplib::Response& response) {
            if (response.status == 503) ++refused;
            return true;
          },
          [&](const char* data, size_t size) {
            if (!counted && size > 0 && data[0] == '0') ++running, counted = true;
            return true;
          });
    });
  }
  while (running + refused < HttpServer::kMaxStreams + 3) std::this_thread::yield();
  // One more if the server has not yet noticed that the reader above has disconnected.
  EXPECT_THAT(refused.load(), ::testing::AnyOf(3, 4));
  EXPECT_TRUE(Answers()) << "beside the streams";
  server_.reset();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HttpServerTest, AStreamEndsWhenItsCallerIsNoLongerAdmitted) {
  std::atomic<bool> valid = true;
  Serve([&](const HttpCaller&) -> absl::StatusOr<std::string> {
    if (!valid) return absl::UnauthenticatedError("the token was removed");
    return "root";
  });
  httplib::Client client = NewClient();
  size_t received = 0;
  const auto reply = client.Get("/events", [&](const char*, size_t size) {
    received += size;
    valid = false;
    return true;
  });
  EXPECT_TRUE(reply) << "the stream has an end";
  EXPECT_GT(received, 0u);
  EXPECT_EQ(client.Get("/events")->status, 401);
}

TEST_F(HttpServerTest, ConcurrentCallersAreAllAnswered) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) good += Answers();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 16 * 20);
}

// Connections that send nothing, or a request that does not end, take no thread: all are open when another
// caller has been answered, more than there are threads.
TEST_F(HttpServerTest, ConnectionsWithoutARequestDelayNoCaller) {
  std::vector<int> sockets;
  for (int i = 0; i < 200; ++i) {
    sockets.push_back(ConnectedTo(port_));
    if (i % 2 == 0) (void)!send(sockets.back(), "GET /metrics HTTP/1.1\r\nX-", 25, MSG_NOSIGNAL);
  }
  EXPECT_TRUE(Answers());
  char byte;
  EXPECT_EQ(recv(sockets.front(), &byte, 1, MSG_DONTWAIT), -1) << "the first is open";
  for (const int fd : sockets) close(fd);
}

// A caller that will send nothing more is not waited for: one that came earlier is still open.
TEST_F(HttpServerTest, AnUnfinishedRequestEndsWithItsSender) {
  const int open = ConnectedTo(port_), ended = ConnectedTo(port_);
  for (const int fd : {open, ended}) EXPECT_EQ(send(fd, "GET /me", 7, MSG_NOSIGNAL), 7);
  shutdown(ended, SHUT_WR);
  char byte;
  EXPECT_LE(recv(ended, &byte, 1, 0), 0);
  EXPECT_EQ(recv(open, &byte, 1, MSG_DONTWAIT), -1);
  // What it has sent in full is served.
  const int whole = ConnectedTo(port_);
  EXPECT_EQ(send(whole, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL), 25);
  shutdown(whole, SHUT_WR);
  EXPECT_EQ(recv(whole, &byte, 1, 0), 1);
  for (const int fd : {open, ended, whole}) close(fd);
}

TEST_F(HttpServerTest, SilentConnectionsDoNotDelayShutdown) {
  std::vector<int> sockets;
  for (int i = 0; i < 100; ++i) sockets.push_back(ConnectedTo(port_, SOCK_NONBLOCK));
  for (int fd : sockets) close(fd);
  server_.reset();
  EXPECT_TRUE(HttpServer::Bind({absl::StrCat("127.0.0.1:", port_), nullptr, "", "", ""}).ok())
      << "the port is free again";
}

// A client that sends `first` and then one byte every 50 ms as long as the connection is open. Its thread
// ends when the server closes the connection.
class Trickler {
 public:
  explicit Trickler(int port, std::string first = "GET /metrics HTTP/1.1\r\nX-Slow: a", bool other = false)
      : fd_(ConnectedTo(port, 0, other)) {
    thread_ = std::thread([this, first = std::move(first)] {
      bool open = send(fd_, first.data(), first.size(), MSG_NOSIGNAL) > 0;
      for (; open && !stop_; absl::SleepFor(absl::Milliseconds(50))) {
        char reply[4096];
        const ssize_t got = recv(fd_, reply, sizeof(reply), MSG_DONTWAIT);
        open = got != 0 && (got > 0 || errno == EAGAIN) && send(fd_, "a", 1, MSG_NOSIGNAL) == 1;
      }
      closed_ = !open;
    });
  }
  ~Trickler() {
    stop_ = true;
    thread_.join();
    close(fd_);
  }
  // Whether the server closes the connection within about a minute.
  bool Closed() {
    for (int i = 0; i < 6000 && !closed_; ++i) absl::SleepFor(absl::Milliseconds(10));
    return closed_;
  }
  bool closed() const { return closed_; }

 private:
  const int fd_;
  std::atomic<bool> stop_ = false, closed_ = false;
  std::thread thread_;
};

TEST_F(HttpServerTest, EndlessLinesAndHeadersAreCutOff) {
  Trickler line(port_, std::string(100'000, 'a'));
  std::string headers = "GET /metrics HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&headers, "X-", i, ": what of it\r\n");
  Trickler many(port_, headers);
  EXPECT_TRUE(line.Closed());
  EXPECT_TRUE(many.Closed());
  EXPECT_TRUE(Answers());
}

TEST_F(HttpServerTest, SlowCallersDoNotBlockOthersAndAreAborted) {
  std::vector<std::unique_ptr<Trickler>> slow;
  for (int i = 0; i < 2 * (HttpServer::kMaxStreams + 4); ++i)
    slow.push_back(std::make_unique<Trickler>(port_));
  EXPECT_TRUE(Answers());
  EXPECT_TRUE(slow.front()->Closed());
}

// The other address's requests wait for their own turns.
TEST_F(HttpServerTest, AnAddressWithManySlowRequestsDelaysNoOther) {
  const std::string slow_body =
      "POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
      "9999\r\n\r\n";
  std::vector<std::unique_ptr<Trickler>> slow;
  for (int i = 0; i < 80; ++i) slow.push_back(std::make_unique<Trickler>(port_, slow_body, /*other=*/true));
  EXPECT_TRUE(Answers());
  const auto ended = std::count_if(slow.begin(), slow.end(), [](const auto& one) { return one->closed(); });
  EXPECT_LT(ended, 40);
}

TEST_F(HttpServerTest, AStalledReaderIsDroppedHoweverMuchItHasRead) {
  auto bound = HttpServer::Bind({"127.0.0.1:0", nullptr, "", "", ""});
  ASSERT_TRUE(bound.ok()) << bound.status();
  HttpServer& server = **bound;
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  server.GetStream("/much", "text/plain", [ended](const HttpRequest&) {
    const std::shared_ptr<void> end(nullptr, [ended](void*) { *ended = true; });
    return [end]() -> std::optional<std::string> { return std::string(64 << 10, 'm'); };
  });
  server.Start();
  const int fd = ConnectedTo(PortOf(server));
  const std::string request = "GET /much HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  ASSERT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::vector<char> buffer(64 << 10);
  for (size_t read = 0; read < 4 << 20;) {
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    ASSERT_GT(got, 0);
    read += static_cast<size_t>(got);
  }
  EXPECT_FALSE(*ended);
  for (int i = 0; i < 6000 && !*ended; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(*ended);
  close(fd);
}

// Connections that are never idle for long share the threads with callers that wait for a thread.
TEST_F(HttpServerTest, BusyConnectionsDoNotBlockOthers) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (int i = 0; i < HttpServer::kMaxStreams + 4; ++i) {
    busy.emplace_back([&] {
      httplib::Client client = NewClient();
      client.set_keep_alive(true);
      for (; !stop; absl::SleepFor(absl::Milliseconds(300))) client.Get("/metrics");
    });
  }
  absl::SleepFor(absl::Milliseconds(500));
  const bool answers = Answers();
  stop = true;
  for (std::thread& thread : busy) thread.join();
  EXPECT_TRUE(answers);
}

TEST_F(HttpServerTest, ASlowCallerDoesNotDelayShutdown) {
  Trickler slow(port_);
  absl::SleepFor(absl::Milliseconds(200));
  server_.reset();
  EXPECT_TRUE(slow.Closed());
}

TEST_F(HttpServerTest, AnUnavailableAddressIsRefused) {
  EXPECT_EQ(HttpServer::Bind({"nonsense", nullptr, "", "", ""}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::Bind({"192.0.2.1:1", nullptr, "", "", ""}).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bfio
