#include "tests/chaos/misbehaving_worker.h"

#include <atomic>
#include <optional>
#include <utility>
#include <variant>

#include "common/net/channel.h"
#include "tests/testing/scripted_worker.h"
#include "worker/barrier/factory.h"

namespace bfio::chaos {
namespace {

// Number of correct reports first, so that the worker holds requests when it misbehaves.
constexpr int kHonestReports = 20;

}  // namespace

class MisbehavingWorker::AlteredLink final : public worker::StepLink {
 public:
  AlteredLink(worker::RouterLink& link, Misbehavior misbehavior) : link_(link), misbehavior_(misbehavior) {}

  void Send(uint64_t stream, worker::OutMessage message) override {
    auto* report = std::get_if<worker::StepReport>(&message);
    if (report == nullptr || ++reports_ < kHonestReports) return link_.Send(stream, std::move(message));
    ++altered_reports_;
    Twist(stream, *report);
    if (misbehavior_ == Misbehavior::kOutOfOrder) {
      if (!held_back_) {
        held_back_ = std::move(message);
        return;
      }
      link_.Send(stream, std::move(message));
      link_.Send(stream, *std::exchange(held_back_, std::nullopt));
      return;
    }
    if (misbehavior_ == Misbehavior::kDuplicate) link_.Send(stream, message);
    link_.Send(stream, std::move(message));
  }

  int64_t altered_reports() const { return altered_reports_; }

 private:
  void Twist(uint64_t stream, worker::StepReport& report) {
    switch (misbehavior_) {
      case Misbehavior::kSkipStep: report.step += 3; return;
      case Misbehavior::kStaleEpoch:
      case Misbehavior::kFutureEpoch: {
        worker::StepReport other = report;
        other.epoch = misbehavior_ == Misbehavior::kStaleEpoch ? other.epoch - 1 : other.epoch + 1;
        for (auto& token : other.output.tokens) token.id = 1;
        link_.Send(stream, std::move(other));
        return;
      }
      case Misbehavior::kUnknownHandles:
        report.output.tokens.push_back({424242, 7});
        report.output.finished.push_back({424243, worker::FinishCause::kLength});
        report.rejected.push_back({424244, absl::StatusCode::kInternal, "no"});
        return;
      case Misbehavior::kEndedHandles:
        for (const worker::Handle handle : ended_) {
          report.output.tokens.push_back({handle, 1});
          report.output.finished.push_back({handle, worker::FinishCause::kLength});
        }
        ended_.clear();
        for (const auto& finish : report.output.finished) ended_.push_back(finish.handle);
        return;
      case Misbehavior::kNegativeLoad:
        report.output.load_tokens = -5;
        report.free_slots = -1;
        report.free_kv_tokens = -1000;
        report.active_requests = -7;
        return;
      case Misbehavior::kOverlong:
        for (const auto& finish : report.output.finished) {
          for (uint32_t extra = 0; extra < 5; ++extra) report.output.tokens.push_back({finish.handle, extra});
        }
        return;
      case Misbehavior::kUnplanned: report.applied_plan += 1000; return;
      case Misbehavior::kDuplicate:
      case Misbehavior::kOutOfOrder: return;
    }
  }

  worker::RouterLink& link_;
  const Misbehavior misbehavior_;
  int reports_ = 0;
  std::atomic<int64_t> altered_reports_{0};
  // Requests that ended in the last report.
  std::vector<worker::Handle> ended_;
  std::optional<worker::OutMessage> held_back_;
};

MisbehavingWorker::MisbehavingWorker(const std::string& router, const std::string& barrier_host,
                                     const std::string& id, Misbehavior misbehavior,
                                     const worker::SimOptions& engine)
    : channel_(NewChannel(router, 1000)) {
  worker::RouterLinkOptions link = {.router = router, .worker_id = id};
  link_ = std::make_unique<worker::RouterLink>(link, channel_);
  altered_link_ = std::make_unique<AlteredLink>(*link_, misbehavior);
  auto sim = worker::MakeSimEngine(engine);
  auto endpoint = worker::MakeBarrierEndpoint("star", {.host = barrier_host, .hub = nullptr, .device = 0});
  worker::StepLoopOptions loop = {.worker_id = id, .version = "misbehaving"};
  // With another model it would be alone in its group.
  loop.model = testing::kSimModel;
  loop_ = std::make_unique<worker::StepLoop>(loop, *std::move(sim), *std::move(endpoint), *altered_link_);
  loop_thread_ = std::thread([this] {
    loop_->Run().IgnoreError();
    link_->Stop();
  });
  link_thread_ = std::thread([this] { link_->Run(loop_->inbox()).IgnoreError(); });
}

int64_t MisbehavingWorker::altered_reports() const {
  return altered_link_->altered_reports();
}

MisbehavingWorker::~MisbehavingWorker() {
  loop_->inbox().OnShutdown("the fault is over");
  loop_thread_.join();
  link_thread_.join();
}

}  // namespace bfio::chaos
