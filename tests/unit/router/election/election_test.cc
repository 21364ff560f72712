// A leader whose etcd fails or does not answer: it keeps the lease just as long as it is in force.
#include "router/election/election.h"

#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace bfio::router {
namespace {

using bfio::testing::kSlowdown;

// etcd's JSON gateway with one lease and one key, which can be told to respond with errors or not at all.
class FakeEtcd {
 public:
  enum class Mood { kWell, kErrs, kHangs, kDrips };

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
    for (int i = 0; i < 60'000 && !server_.is_running(); ++i) absl::SleepFor(absl::Milliseconds(1));
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

  // Sets how calls of `path` are answered from now on; those that hang, when they do no more.
  void Set(const std::string& path, Mood mood) {
    MutexLock lock(&mutex_);
    moods_[path] = mood;
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
  void Answer(const std::string& path, httplib::Response& reply) {
    Mood mood = Mood::kWell;
    {
      MutexLock lock(&mutex_);
      ++calls_[path];
      const auto goes_on = [&] { return ending_ || moods_[path] != Mood::kHangs; };
      mutex_.Await(absl::Condition(&goes_on));
      mood = moods_[path];
      if (mood == Mood::kWell) ++answered_[path];
    }
    if (mood == Mood::kDrips) {
      return reply.set_content_provider("application/json", [](size_t, httplib::DataSink& sink) {
        absl::SleepFor(absl::Milliseconds(20));
        return sink.write(" ", 1);
      });
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
    if (path == "/v3/lease/grant") return R"({"header":{},"ID":"7","TTL":"3600"})";
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
  std::map<std::string, Mood> moods_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_), answered_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool lease_ends_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

using Mood = FakeEtcd::Mood;

constexpr char kRenewal[] = "/v3/lease/keepalive", kCheck[] = "/v3/kv/range";
constexpr absl::Duration kTtl = absl::Seconds(4 * kSlowdown), kPatience = absl::Seconds(60 * kSlowdown);

class LeaderTest : public ::testing::Test {
 protected:
  // Creates an election over these etcd endpoints and waits until it leads.
  void Lead(std::vector<std::string> endpoints) {
    ElectionOptions options;
    options.etcd.endpoints = std::move(endpoints);
    options.name = "router";
    options.ttl = kTtl;
    auto election = Election::Create(std::move(options));
    ASSERT_TRUE(election.ok()) << election.status();
    election_ = *std::move(election);
    ASSERT_TRUE(election_->Campaign(
        [](absl::Duration time) {
          absl::SleepFor(time);
          return false;
        },
        [](const std::string&) {}));
  }
  void Lead() { Lead({etcd_.endpoint()}); }
  bool Holds() const { return election_->lease()->Holds(); }
  absl::Time End() const { return Lease::Now() + election_->lease()->Left(); }
  // Waits for the condition. Checks the lease meanwhile, as the decision thread would.
  bool Until(const std::function<bool()>& condition) const {
    const absl::Time give_up = MonotonicNow() + kPatience;
    while (!condition() && MonotonicNow() < give_up) {
      election_->lease()->Check();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return condition();
  }
  // Waits until `count` more renewals have been answered, or the lease is lost.
  void AwaitRenewals(int count) {
    const int before = etcd_.answered(kRenewal);
    EXPECT_TRUE(Until([&] { return !Holds() || etcd_.answered(kRenewal) >= before + count; }));
  }

  FakeEtcd etcd_;
  std::unique_ptr<Election> election_;
};

// Otherwise a router that stands by would neither lead nor end.
TEST(Etcd, AnAnswerThatComesByteByByteIsNone) {
  FakeEtcd etcd;
  etcd.Set(kCheck, Mood::kDrips);
  const auto client = Etcd::Create({.endpoints = {etcd.endpoint()}, .timeout = absl::Milliseconds(200)});
  EXPECT_TRUE(absl::IsUnavailable((*client)->Read("key").status()));
  etcd.Set(kCheck, Mood::kWell);
  EXPECT_TRUE((*client)->Read("key").ok()) << "the next call is another";
}

TEST(Etcd, OddAnswersAreNone) {
  EXPECT_TRUE(LeaseIn(R"({"ID":"7","TTL":"4"})", 4).ok());
  for (const char* ttl : {"3", "0", "-9", "x"})
    EXPECT_FALSE(LeaseIn(absl::StrCat(R"({"ID":"7","TTL":")", ttl, R"("})"), 4).ok()) << ttl;
  for (const std::string& name :
       {std::string("10.0.0.1:50051"), std::string("a\nforged line"), std::string(2000, 'a')}) {
    const std::string answer = absl::StrCat(R"({"header":{},"kvs":[{"create_revision":"5","value":")",
                                            absl::Base64Escape(name), R"("}]})");
    EXPECT_EQ(OwnerIn(answer).ok(), name[0] == '1') << name;
  }
}

TEST_F(LeaderTest, TransientErrorsKeepTheLease) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  AwaitRenewals(1);
  etcd_.Set(kRenewal, Mood::kErrs);
  const absl::Time end = End();
  const int before = etcd_.calls(kRenewal);
  ASSERT_TRUE(Until([&] { return etcd_.calls(kRenewal) >= before + 2; }));
  EXPECT_TRUE(Holds());
  etcd_.Set(kRenewal, Mood::kWell);
  EXPECT_TRUE(Until([&] { return End() > end + kTtl || !Holds(); }));
  EXPECT_TRUE(Holds());
}

// The lease ends by the leader's own clock, counted from before the last renewal was requested.
TEST_F(LeaderTest, WithoutAnswersItLeadsForTheTtlAndNoLonger) {
  for (const Mood mood : {Mood::kErrs, Mood::kHangs}) {
    etcd_.Set(kRenewal, Mood::kWell);
    etcd_.Set(kCheck, Mood::kWell);
    ASSERT_NO_FATAL_FAILURE(Lead());
    AwaitRenewals(1);
    etcd_.Set(kRenewal, mood);
    etcd_.Set(kCheck, mood);
    const absl::Time asked = Lease::Now();
    absl::Time end = End();
    EXPECT_TRUE(Until([&] {
      if (Holds()) end = End();
      return !Holds();
    }));
    EXPECT_GE(Lease::Now(), end);
    EXPECT_LE(end, asked + kTtl) << "no answer has made it longer";
    // A lost lease is not regained when etcd recovers.
    etcd_.Set(kRenewal, Mood::kWell);
    etcd_.Set(kCheck, Mood::kWell);
    election_.reset();
  }
}

TEST_F(LeaderTest, AHangingEndpointIsReplacedByAnother) {
  FakeEtcd other;
  // The second endpoint does not know the key.
  etcd_.Set(kCheck, Mood::kErrs);
  ASSERT_NO_FATAL_FAILURE(Lead({other.endpoint(), etcd_.endpoint()}));
  other.Set(kRenewal, Mood::kHangs);
  other.Set(kCheck, Mood::kHangs);
  AwaitRenewals(4);
  EXPECT_TRUE(Holds());
  other.Set(kRenewal, Mood::kWell);
  other.Set(kCheck, Mood::kWell);
}

TEST_F(LeaderTest, ALeaseEndedByEtcdIsLostAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  AwaitRenewals(1);
  const absl::Time end = End();
  etcd_.EndLease();
  EXPECT_TRUE(Until([&] { return !Holds(); }));
  EXPECT_LT(End(), end) << "not at its end";
}

}  // namespace
}  // namespace bfio::router
