#include "router/engine_link/engine_link.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "router/engine_link/engine_server.h"

namespace bfio::router {
namespace {

// First MemberId of engines' ranks; workers of the worker link are numbered from 1.
constexpr MemberId kFirstMember = MemberId{1} << 62;
// The thread checks its queue at least this often.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

EngineLink::EngineLink(Options options, WorkerHandler* handler)
    : options_(std::move(options)),
      handler_(handler),
      events_(std::make_shared<EventQueue>()),
      shared_{kFirstMember} {
  shared_.free = [this](const std::string& parameters) {
    for (const auto& server : servers_)
      if (server->Free(parameters)) return;
  };
  shared_.room = static_cast<int64_t>(options_.instance % (uint64_t{1} << 30));
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "bfio-engines");
    if (!options_.engines.watched()) SetEngines(options_.engines.engines);
    Run();
  });
  if (options_.engines.watched()) watch_ = std::thread([this] { Watch(); });
}

EngineLink::~EngineLink() {
  Stop();
  if (watch_.joinable()) watch_.join();
}

void EngineLink::Stop() {
  watching_.Close();
  events_->Close();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::OnStep(uint64_t stream, EngineStep step, AnswerStep answer) {
  events_->Post([this, stream, step = std::move(step), answer = std::move(answer)]() mutable {
    TakeStep(followers_[stream], std::move(step), answer);
  });
}

void EngineLink::OnStepsEnded(uint64_t stream) {
  events_->Post([this, stream] { followers_.erase(stream); });
}

void EngineLink::Bind(Follower& follower, MemberId member) {
  for (const auto& server : servers_) {
    const std::optional<size_t> rank = server->RankOf(member);
    if (!rank) continue;
    follower.server = server;
    follower.rank = *rank;
    follower.member = member;
    return spdlog::info("engine {}: rank {} reports its steps", server->address().ToString(), *rank);
  }
}

void EngineLink::TakeStep(Follower& follower, EngineStep step, const AnswerStep& answer) {
  if (step.token_budget) follower.token_budget = step.token_budget;
  step.token_budget = follower.token_budget;
  for (const EngineStep::Prompt& prompt : step.prompts) {
    if (prompt.name.instance == options_.instance && prompt.name.member > follower.member)
      Bind(follower, prompt.name.member);
  }
  std::erase_if(step.prompts, [&](const EngineStep::Prompt& prompt) {
    return prompt.name.instance != options_.instance || prompt.name.member != follower.member;
  });
  const auto server = follower.server.lock();
  answer(server == nullptr ? std::nullopt : server->OnStep(follower.rank, follower.member, step));
}

void EngineLink::Watch() {
  pthread_setname_np(pthread_self(), "bfio-list");
  EngineList list(options_.engines, options_.resolve, options_.resolve_pool);
  std::vector<EngineAddress> last;
  std::vector<EventQueue::Event> none;
  while (!watching_.closed()) {
    std::vector<EngineAddress> now = list.Resolve([this] { return watching_.closed(); });
    if (watching_.closed()) return;
    if (now != last) {
      last = now;
      events_->Post([this, now = std::move(now)] { SetEngines(now); });
    }
    watching_.WaitAndTake(EngineList::kPeriod, none);
  }
}

void EngineLink::SetEngines(const std::vector<EngineAddress>& engines) {
  for (const auto& server : servers_) {
    const bool listed = std::any_of(engines.begin(), engines.end(), [&](const EngineAddress& address) {
      return address.server == server->address().server;
    });
    if (!listed) server->Retire();
  }
  for (const EngineAddress& address : engines) {
    const auto there = std::find_if(servers_.begin(), servers_.end(), [&](const auto& server) {
      return server->address().server == address.server;
    });
    if (there != servers_.end()) {
      (*there)->Keep();
      continue;
    }
    EngineBarrier* const barrier = address.barrier.empty() ? nullptr : &barriers_[address.barrier];
    servers_.push_back(
        std::make_shared<EngineServer>(address, &options_, handler_, events_, &shared_, barrier));
  }
}

void EngineLink::Run() {
  std::vector<EventQueue::Event> events;
  while (!events_->closed()) {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& server : servers_) next = std::min(next, server->next_deadline());
    const absl::Duration wait = std::max(absl::ZeroDuration(), next - MonotonicNow());
    events_->WaitAndTake(std::min(wait, kLongestPause), events);
    for (EventQueue::Event& event : events) std::move(event)();
    const absl::Time now = MonotonicNow();
    for (const auto& server : servers_) server->OnTimer(now);
    std::erase_if(servers_, [](const auto& server) { return server->gone(); });
  }
  for (const auto& server : servers_) server->CancelAll();
}

}  // namespace bfio::router
