#include "common/telemetry/metrics/http_server.h"

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/net/address.h"

namespace bfio {
namespace {

constexpr int kThreads = 4;
// Connections that wait for a thread. Beyond that the kernel's queue fills and callers wait for the
// connection.
constexpr size_t kMaxWaiting = 64;
// A connection holds a thread while it is idle.
constexpr int kReadSeconds = 2, kWriteSeconds = 5, kKeepAliveSeconds = 2;
constexpr size_t kMaxBodyBytes = 64 << 10;

// httplib's own pool has no bound.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < kMaxWaiting || stopping_; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void shutdown() override {
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty() || stopping_; });
        // What has been accepted is served: a task owns its connection.
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        changed_.notify_all();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(Gate gate) : gate_(std::move(gate)) {
    server_.new_task_queue = [] { return new BoundedPool; };
    server_.set_read_timeout(kReadSeconds);
    server_.set_write_timeout(kWriteSeconds);
    server_.set_keep_alive_timeout(kKeepAliveSeconds);
    server_.set_payload_max_length(kMaxBodyBytes);
    server_.set_tcp_nodelay(true);
    // Paths are looked up here, for httplib's own are regular expressions.
    server_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Bind(const Address& address) {
    const std::string refused = absl::StrCat("cannot listen on ", address.ToString());
    Address bound = address;
    if (address.port == 0) {
      const int port = server_.bind_to_any_port(address.host);
      if (port <= 0) return absl::UnavailableError(refused);
      bound.port = static_cast<uint16_t>(port);
    } else if (!server_.bind_to_port(address.host, address.port)) {
      return absl::UnavailableError(refused);
    }
    address_ = bound.ToString();
    return absl::OkStatus();
  }

  void Handle(const std::string& path, Handler handler) { handlers_[path] = std::move(handler); }

  void Start() {
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    // stop() before listen_after_bind has begun would be forgotten, and the thread never end.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
  }

  const std::string& address() const { return address_; }

 private:
  void Answer(const httplib::Request& request, httplib::Response& response) {
    const auto found = handlers_.find(request.path);
    if (found == handlers_.end()) {
      response.status = 404;
      response.set_content("no such page\n", "text/plain");
      return;
    }
    if (request.method != "GET" && request.method != "HEAD") {
      response.status = 405;
      response.set_header("Allow", "GET");
      response.set_content("only GET\n", "text/plain");
      return;
    }
    if (gate_) {
      const absl::Status entered = gate_(request.get_header_value("Authorization"), request.remote_addr);
      if (!entered.ok()) {
        response.status = entered.code() == absl::StatusCode::kPermissionDenied ? 403 : 401;
        if (response.status == 401) response.set_header("WWW-Authenticate", "Bearer");
        response.set_content(absl::StrCat(entered.message(), "\n"), "text/plain");
        return;
      }
    }
    HttpReply reply = found->second();
    response.status = reply.status;
    response.set_content(std::move(reply.body), reply.content_type);
  }

  const Gate gate_;
  std::map<std::string, Handler> handlers_;
  httplib::Server server_;
  std::string address_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Bind(Options options) {
  const absl::StatusOr<Address> address = ParseAddress(options.listen, true);
  if (!address.ok()) return address.status();
  auto impl = std::make_unique<Impl>(std::move(options.gate));
  if (absl::Status status = impl->Bind(*address); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
void HttpServer::Handle(const std::string& path, Handler handler) {
  impl_->Handle(path, std::move(handler));
}
void HttpServer::Start() {
  impl_->Start();
}
const std::string& HttpServer::address() const {
  return impl_->address();
}

}  // namespace bfio
