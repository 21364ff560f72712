#include "router/frontend/gateway/load_feed.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/server_call.h"

namespace bfio::router::gateway {
namespace {

// Longest time between two records.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

grpc::Status Closed() {
  return {grpc::StatusCode::UNAVAILABLE, "the router is shutting down"};
}

}  // namespace

class LoadFeed::Subscriber final : public ServerCall<LoadFeed::Subscriber, AnyMessage, AnyMessage> {
 public:
  static std::shared_ptr<Subscriber> Create(grpc::CallbackServerContext* context, LoadFeed* feed) {
    std::shared_ptr<Subscriber> subscriber(new Subscriber(context, feed));
    subscriber->Open(subscriber);
    return subscriber;
  }

  // False when the stream has ended, or its client has read nothing for too long.
  bool Push(const common_pb::EngineLoad& load, absl::Time now) {
    MutexLock lock(&mutex_);
    if (ended() || Untaken(now) > kPatience) return false;
    load_ = load;
    Advance();
    return true;
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  Subscriber(grpc::CallbackServerContext* context, LoadFeed* feed)
      : ServerCall(context, AnyMessage::Of(common_pb::SubscribeKvEventsRequest::default_instance())),
        feed_(feed) {}

  void OnMessage(AnyMessage request) override {
    if (request.As<common_pb::SubscribeKvEventsRequest>().load_records_before_first_batch())
      return feed_->Add(shared_from_this());
    Close({grpc::StatusCode::UNIMPLEMENTED,
           "KV cache events are not supported; set load_records_before_first_batch to receive load records"});
  }
  bool Next(AnyMessage& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!load_) return false;
    if (!message) message = AnyMessage::Of(common_pb::KvEventBatch::default_instance());
    auto& batch = message.As<common_pb::KvEventBatch>();
    batch.set_timestamp(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
    batch.set_dp_rank(0);
    *batch.mutable_load() = *std::exchange(load_, std::nullopt);
    batch.mutable_load()->set_sample(++samples_);
    return true;
  }

  LoadFeed* const feed_;
  // The next record.
  std::optional<common_pb::EngineLoad> load_ ABSL_GUARDED_BY(mutex_);
  uint64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct LoadFeed::Answer {
  Mutex mutex;
  bool come ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<Loads> loads ABSL_GUARDED_BY(mutex) = absl::UnknownError("no answer");
};

LoadFeed::LoadFeed(RequestHandler* handler, absl::Duration interval)
    : handler_(handler), interval_(interval), thread_([this] { Run(); }) {}

LoadFeed::~LoadFeed() {
  Close();
  thread_.join();
}

LoadFeed::Stream* LoadFeed::Subscribe(grpc::CallbackServerContext* context,
                                      const absl::StatusOr<Peer>& allowed, FirstMessages* messages) {
  const std::shared_ptr<Subscriber> subscriber = Subscriber::Create(context, this);
  subscriber->Begin(allowed, messages);
  return subscriber.get();  // kept alive by itself until OnDone
}

void LoadFeed::Add(const std::shared_ptr<Subscriber>& subscriber) {
  grpc::Status refused = Closed();
  {
    MutexLock lock(&mutex_);
    std::erase_if(subscribers_, [](const auto& one) { return one->HasEnded(); });
    if (!closed_ && MayJoin(subscribers_, subscriber, kMaxSubscribers)) {
      subscribers_.push_back(subscriber);
      newcomers_ = true;
      return;
    }
    if (!closed_)
      refused = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many SubscribeKvEvents streams are open"};
  }
  subscriber->Close(refused);
}

void LoadFeed::Close() {
  std::vector<std::shared_ptr<Subscriber>> ended;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    ended.swap(subscribers_);
  }
  for (const auto& subscriber : ended) subscriber->Close(Closed());
}

bool LoadFeed::AwaitSubscribers() {
  MutexLock lock(&mutex_);
  const auto some = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !subscribers_.empty(); };
  mutex_.Await(absl::Condition(&some));
  return !closed_;
}

bool LoadFeed::Pause(absl::Duration time) {
  MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&closed_), time);
  return !closed_;
}

void LoadFeed::Publish(const common_pb::EngineLoad& load) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    MutexLock lock(&mutex_);
    subscribers = subscribers_;
    newcomers_ = false;
  }
  const absl::Time now = MonotonicNow();
  for (const auto& subscriber : subscribers) {
    if (subscriber->Push(load, now)) continue;
    subscriber->BreakOffIfStuck(now, absl::ZeroDuration());
    MutexLock lock(&mutex_);
    std::erase(subscribers_, subscriber);
  }
}

absl::StatusOr<Loads> LoadFeed::Query() {
  const auto answer = std::make_shared<Answer>();
  const absl::Status asked = handler_->GetLoads(std::nullopt, [answer](absl::StatusOr<Loads> loads) {
    MutexLock lock(&answer->mutex);
    answer->loads = std::move(loads);
    answer->come = true;
  });
  if (!asked.ok()) return asked;
  MutexLock lock(&answer->mutex);
  answer->mutex.AwaitWithTimeout(absl::Condition(&answer->come), kHeartbeat);
  return answer->loads;
}

bool LoadFeed::HasNewcomers() {
  MutexLock lock(&mutex_);
  return newcomers_;
}

void LoadFeed::Run() {
  std::string last;
  absl::Time due = absl::InfinitePast();
  while (AwaitSubscribers()) {
    if (const absl::StatusOr<Loads> loads = Query(); loads.ok()) {
      const common_pb::EngineLoad load = LoadRecord(*loads);
      std::string bytes = load.SerializeAsString();
      const absl::Time now = MonotonicNow();
      if (HasNewcomers() || bytes != last || now >= due) {
        Publish(load);
        last = std::move(bytes);
        due = now + kHeartbeat;
      }
    }
    if (!Pause(interval_)) return;
  }
}

}  // namespace bfio::router::gateway
