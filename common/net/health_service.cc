#include "common/net/health_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/net/server_call.h"

namespace bfio {

// One Watch call: writes the status whenever it changes.
class HealthService::Watch final : public ServerCall<Watch, Request, Response> {
 public:
  static std::shared_ptr<Watch> Create(HealthService* health) {
    std::shared_ptr<Watch> watch(new Watch(health));
    watch->Open(watch);
    return watch;
  }

  // REQUIRES: called before AddWatch.
  void set_service(std::string service) { service_ = std::move(service); }
  const std::string& service() const { return service_; }
  void Notify(Status status) {
    MutexLock lock(&mutex_);
    if (told_ == status) return;
    told_ = next_ = status;
    Advance();
  }

 private:
  explicit Watch(HealthService* health) : ServerCall(/*context=*/nullptr), health_(health) {}

  void OnMessage(Request request) override {
    set_service(request.service());
    health_->AddWatch(shared_from_this());
  }
  bool Next(Response& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!next_) return false;
    message.set_status(*std::exchange(next_, std::nullopt));
    return true;
  }

  HealthService* const health_;
  // Constant once the watch has been added.
  std::string service_;
  std::optional<Status> told_ ABSL_GUARDED_BY(mutex_), next_ ABSL_GUARDED_BY(mutex_);
};

HealthService::HealthService(const std::vector<std::string>& services, const Authenticator* authenticator)
    : first_service_(services.front()), authenticator_(authenticator) {
  serving_[""] = true;
  for (const std::string& service : services) serving_[service] = false;
  Add("/grpc.health.v1.Health/Check",
      [this](grpc::CallbackServerContext* context) { return Check(context); });
  Add("/grpc.health.v1.Health/Watch",
      [this](grpc::CallbackServerContext* context) { return BeginWatch(context); });
}

HealthService::~HealthService() = default;

void HealthService::SetServing(const std::string& service, bool serving) {
  MutexLock lock(&mutex_);
  serving_[service] = serving;
  NotifyWatchers();
}

void HealthService::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  NotifyWatchers();
}

HealthService::Status HealthService::StatusOf(const std::string& service) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return Response::SERVICE_UNKNOWN;
  return found->second && !closed_ ? Response::SERVING : Response::NOT_SERVING;
}

auto HealthService::Check(grpc::CallbackServerContext* context) -> CallReactor* {
  using CheckCall = UnaryCall<Request, Response>;
  const auto answer = [this](CheckCall& call, const std::string& service) {
    Response response;
    {
      MutexLock lock(&mutex_);
      response.set_status(StatusOf(service));
    }
    if (response.status() == Response::SERVICE_UNKNOWN)
      return call.Reply(absl::NotFoundError("no such service"));
    call.Reply(std::move(response));
  };
  if (!authenticator_->Knows(*context)) {
    CheckCall* const call = CheckCall::Create(context);
    answer(*call, first_service_);
    return call;
  }
  authenticator_->Accepted(*context);
  return CheckCall::Begin(context, PeerOf(*context), &messages_,
                          [answer](const std::shared_ptr<CheckCall>& call, const Request& request) {
                            answer(*call, request.service());
                          });
}

auto HealthService::BeginWatch(grpc::CallbackServerContext* context) -> CallReactor* {
  const std::shared_ptr<Watch> watch = Watch::Create(this);
  if (authenticator_->Knows(*context)) {
    authenticator_->Accepted(*context);
    watch->Begin(PeerOf(*context), &messages_);
  } else {
    watch->set_service(first_service_);
    watch->set_peer({PeerOf(*context).group, ""});
    AddUnknownWatch(watch);
  }
  return watch.get();  // owns itself until OnDone
}

void HealthService::AddWatch(const std::shared_ptr<Watch>& watch) {
  MutexLock lock(&mutex_);
  std::erase_if(watches_, [](const auto& other) { return other->HasEnded(); });
  if (!MayJoin(watches_, watch, kMaxWatches))
    return watch->Close({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches"});
  Join(watches_, watch);
}

void HealthService::AddUnknownWatch(const std::shared_ptr<Watch>& watch) {
  MutexLock lock(&mutex_);
  std::erase_if(unknown_watches_, [](const auto& other) { return other->HasEnded(); });
  if (!MayJoin(unknown_watches_, watch, kMaxUnknownWatches)) {
    auto oldest = std::find_if(unknown_watches_.begin(), unknown_watches_.end(),
                               [&](const auto& other) { return other->peer().group == watch->peer().group; });
    if (oldest == unknown_watches_.end()) oldest = unknown_watches_.begin();
    (*oldest)->Close({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches without a token"});
    unknown_watches_.erase(oldest);
  }
  Join(unknown_watches_, watch);
}

void HealthService::Join(Watches& watches, const std::shared_ptr<Watch>& watch) {
  watches.push_back(watch);
  watch->Notify(StatusOf(watch->service()));
}

void HealthService::NotifyWatchers() {
  for (const Watches* watches : {&watches_, &unknown_watches_}) {
    for (const auto& watch : *watches) watch->Notify(StatusOf(watch->service()));
  }
}

}  // namespace bfio
