// etcd's JSON gateway with one lease and one key, which can be told to respond late, with errors or not at
// all.
//
// Purpose: causes etcd failures at the moments that a test chooses. Threads: the server's own; the methods
// may be called by any thread.
#ifndef BFIO_TESTS_TESTING_FAKE_ETCD_H_
#define BFIO_TESTS_TESTING_FAKE_ETCD_H_

#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <map>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::testing {

class FakeEtcd {
 public:
  enum class Mood { kWell, kErrs, kHangs };

  FakeEtcd() {
    // A call in mood kHangs occupies a thread until its mood changes.
    server_.new_task_queue = [] { return new httplib::ThreadPool(64); };
    for (const char* const path :
         {"/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke", "/v3/kv/range", "/v3/kv/txn"}) {
      server_.Post(path,
                   [this, path](const httplib::Request&, httplib::Response& reply) { Answer(path, reply); });
    }
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) absl::SleepFor(absl::Milliseconds(1));
  }
  ~FakeEtcd() {
    {
      MutexLock lock(&mutex_);
      ending_ = true;
    }
    server_.stop();
    thread_.join();
  }

  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }

  // Sets how calls of `path` are answered from now on. Calls that hang are answered when the mood is kWell
  // again.
  void Set(const std::string& path, Mood mood, absl::Duration delay = absl::ZeroDuration()) {
    MutexLock lock(&mutex_);
    behaviour_[path] = {mood, delay};
  }
  void EndLease() {
    MutexLock lock(&mutex_);
    lease_ends_ = true;
  }
  // Number of calls of `path` received; number of them answered without an error.
  int calls(const std::string& path) {
    MutexLock lock(&mutex_);
    return calls_[path];
  }
  int answered(const std::string& path) {
    MutexLock lock(&mutex_);
    return answered_[path];
  }

 private:
  struct Behaviour {
    Mood mood = Mood::kWell;
    absl::Duration delay;
  };

  void Answer(const std::string& path, httplib::Response& reply) {
    Mood mood = Mood::kWell;
    {
      MutexLock lock(&mutex_);
      ++calls_[path];
      const auto ended = [&] { return ending_; };
      mutex_.AwaitWithTimeout(absl::Condition(&ended), behaviour_[path].delay);
      const auto goes_on = [&] { return ending_ || behaviour_[path].mood != Mood::kHangs; };
      mutex_.Await(absl::Condition(&goes_on));
      mood = behaviour_[path].mood;
      if (mood == Mood::kWell) ++answered_[path];
    }
    if (mood != Mood::kWell) {
      reply.status = 503;
      reply.set_content(R"({"error":"etcdserver: no leader","code":14})", "application/json");
      return;
    }
    reply.set_content(Reply(path), "application/json");
  }
  std::string Reply(const std::string& path) {
    MutexLock lock(&mutex_);
    if (path == "/v3/lease/grant") return R"({"header":{},"ID":"7","TTL":"4"})";
    if (path == "/v3/lease/keepalive")
      return absl::StrCat(R"({"result":{"ID":"7","TTL":")", lease_ends_ ? 0 : 4, R"("}})");
    if (path == "/v3/kv/txn") {
      taken_ = true;
      return R"({"header":{"revision":"5"},"succeeded":true})";
    }
    if (path == "/v3/lease/revoke") taken_ = false;
    if (path == "/v3/kv/range" && taken_) {
      return absl::StrCat(R"({"header":{"revision":"5"},"kvs":[{"value":")", absl::Base64Escape("router"),
                          R"(","create_revision":"5","lease":"7"}]})");
    }
    return R"({"header":{"revision":"4"}})";
  }

  httplib::Server server_;
  int port_ = 0;
  Mutex mutex_;
  std::map<std::string, Behaviour> behaviour_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_), answered_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool lease_ends_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_FAKE_ETCD_H_
