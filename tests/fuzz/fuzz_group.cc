// Groups and requests: workers that join, answer, report, announce, fail, leave and send any messages;
// clients that send requests, resume them, cancel them and claim tokens that they have not received; routers
// that restart and time that passes. In any order, in a world (tests/testing/world.h) that checks what groups
// and requests do. The tokens of a request are its id, so that a stream detects tokens of another owner.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/requests/check_request.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/world.h"

namespace {

using namespace bfio::router;  // NOLINT: a program of one file
using bfio::core::RequestId;
using bfio::fuzz::Check;
using bfio::fuzz::Input;

// A token that a client claims to have received.
constexpr uint32_t kClaimed = 1'000'000'000;

// The owner of a request, who may read its tokens.
struct Owner {
  std::string tenant, name, secret;
  bool operator==(const Owner&) const = default;
};

class Players {
 public:
  Players(Input& input, const WorldOptions& options) : input_(input), world_(options) {
    world_.decide = false;
  }

  // As many workers join as a group waits for, so that requests can run at once.
  void Form() {
    for (int32_t i = 0; i < world_.options().groups.group.workers; ++i) {
      WorkerHello hello = {.worker_id = absl::StrCat("w", i), .slots = 8, .barrier = "star"};
      hello.kv_tokens = hello.max_sequence_tokens = 1000;
      hello.steps_alone = true;
      hello.stream = ++members_;
      world_.HelloFrom(members_, hello);
    }
    for (MemberId member = 1; member <= members_; ++member)
      Answer(member, {.epoch = GroupOf(member).epoch()});
  }
  void Play() {
    for (int i = 0; !input_.empty() && i < 500; ++i) {
      Event();
      CheckWorld();
    }
    EndWell();
  }

 private:
  void CheckWorld() {
    for (const std::string& promise : world_.broken) Check(false, promise.c_str());
    const int64_t kept = world_.requests().kept_bytes();
    Check(kept >= 0 && kept <= world_.options().requests.resume.budget_bytes, "what is kept has a bound");
    Check(world_.requests().live() >= 0, "live() counts");
  }
  RequestId AnyId() { return input_.Byte() % 16u; }
  MemberId AnyMember() { return members_ == 0 ? 0 : 1 + input_.Byte() % members_; }
  Group& GroupOf(MemberId member) {
    for (const auto& group : world_.groups().groups()) {
      if (group->Has(member)) return *group;
    }
    return world_.group();
  }
  std::vector<HeldActive> Active() {
    std::vector<HeldActive> active(input_.Byte() % 4);
    for (HeldActive& one : active)
      one = {input_.Byte() % 16u, static_cast<int64_t>(input_.Number() >> 24), input_.Byte() % 3u};
    return active;
  }

  void Event() {
    const MemberId member = AnyMember();
    switch (input_.Byte() % 15) {
      case 0:
        if (members_ < 64) Hello();
        return;
      case 1:
      case 2: return Ready(member);
      case 3:
      case 4: return Report(member);
      case 5:
        return world_.Do([&](GroupSet& set, Commands& out) { set.OnGone(member, world_.now, out); }, member);
      case 6:
        return world_.Do(
            [&](GroupSet& set, Commands& out) {
              set.Expel(member, absl::UnknownError("fuzz"), world_.now, out);
            },
            member);
      case 7:
        if (input_.Byte() % 2 == 0)
          return world_.Do(
              [&](GroupSet& set, Commands& out) { set.OnLeave(member, "fuzz", world_.now, out); }, member);
        if (const uint8_t who = input_.Byte(); who < 128) {
          world_.Drain(absl::StrCat("w", who % 6)).IgnoreError();
        } else {
          world_.Undrain(absl::StrCat("w", who % 6)).IgnoreError();
        }
        return;
      case 8: return world_.Advance(absl::Milliseconds(50) * input_.Byte());
      case 9: return Arrive(AnyId(), false);
      case 10: return Announce(member);
      case 11: return Arrive(AnyId(), true);
      case 12:
        if (const auto client = world_.clients.find(AnyId()); client != world_.clients.end()) {
          const uint8_t how = input_.Byte();
          if (how % 4 == 0) client->second->stuck = how % 8 == 0;
          if (how % 4 != 0) world_.requests().OnCancel(client->second->id(), how % 4 == 1, world_.now);
        }
        return;
      case 13:
        if (const Owner owner = AnyOwner(); input_.Byte() % 8 != 0) {
          world_.requests().Abort(owner.tenant, owner.name, owner.secret, world_.now);
        } else {
          world_.Start();
        }
        return;
      default:
        world_.decide = true;
        world_.Do([](GroupSet&, Commands&) {});
        world_.decide = false;
    }
  }

  Owner AnyOwner() {
    const uint8_t byte = input_.Byte();
    return {byte % 2 == 0 ? "" : "acme", absl::StrCat("r", byte / 2 % 4), byte / 8 % 4 == 0 ? "" : "secret"};
  }
  // Whether the request with this id may have this owner: a request has one.
  bool Owns(const Owner& owner, RequestId id) {
    return owners_.try_emplace(id, owner).first->second == owner;
  }

  void Arrive(RequestId id, bool back) {
    const Owner owner = AnyOwner();
    const uint8_t how = input_.Byte();
    ClientRequest request = {.request_id = owner.name,
                             .tenant = owner.tenant,
                             .resumable = back || how % 2 == 0,
                             .resume_token = owner.secret};
    if (!back || how % 4 != 0) {
      request.prompt_tokens = 1 + how / 4 % 8;
      if (how / 32 % 2 == 0) request.prompt.assign(request.prompt_tokens, 7);
      request.max_new_tokens = 1 + input_.Byte() % 12;
      request.priority = how / 64 - 1;
    }
    if (how == 255) {
      request.parent_id = "p";
      request.parent_timeout = absl::Seconds(1);
    }
    if (back) {
      request.resume_from = input_.Byte() % 8;
      if (request.has_prompt()) request.received.assign(input_.Byte() % 8, kClaimed);
      request.resume_proven = request.has_prompt() && input_.Byte() % 2 == 0;
    }
    if (world_.clients.contains(id) || !CheckRequest(request, RequestLimits()).ok() || !Owns(owner, id))
      return;
    const auto own = [this, owner](uint32_t, uint32_t token) {
      return token == kClaimed || owners_[token] == owner;
    };
    world_.Arrive(id, own, std::move(request));
  }

  void Hello() {
    WorkerHello hello;
    hello.worker_id = absl::StrCat("w", input_.Byte() % 6);
    const uint8_t group = input_.Byte();
    if (group % 4 == 0) hello.group = absl::StrCat("g", group % 3);
    if (group % 8 == 7) hello.model = "another";
    hello.slots = 2;
    hello.kv_tokens = hello.max_sequence_tokens = 1000;
    hello.barrier = input_.Byte() % 8 == 0 ? "nccl" : "star";
    hello.steps_alone = input_.Byte() % 8 != 0;
    hello.router_instance = input_.Byte() % 4;
    hello.active = Active();
    // Sometimes the same process joins again.
    hello.worker_instance = hello.router_instance;
    hello.stream = ++members_;
    world_.HelloFrom(members_, hello);
  }

  void Ready(MemberId member) {
    EpochReady ready;
    ready.epoch = input_.Byte() % 8 == 0 ? input_.Number() : GroupOf(member).epoch();
    if (input_.Byte() % 8 == 0) ready.error = "fuzz";
    if (input_.Byte() % 4 == 0) ready.missing_ranks = {input_.Byte()};
    ready.active = Active();
    Answer(member, ready);
  }
  void Answer(MemberId member, const EpochReady& ready) {
    if (ready.error.empty()) world_.checker().OnReady(member, ready.epoch);
    world_.Do([&](GroupSet& set, Commands& out) { set.OnEpochReady(member, ready, world_.now, out); },
              member);
  }

  // A report of a request that its member does not hold ends the member, so most are of those that it holds.
  bool MayReport(RequestId id, MemberId member) {
    return world_.checker().HolderOf(id) == member || input_.Byte() % 8 == 0;
  }
  void Report(MemberId member) {
    StepReport report;
    report.epoch = input_.Byte() % 8 == 0 ? input_.Number() : GroupOf(member).epoch();
    int64_t& step = steps_[{member, report.epoch}];
    report.step = input_.Byte() % 8 == 0 ? input_.Byte() : ++step;
    report.applied_plan =
        input_.Byte() % 8 == 0 ? input_.Byte() : std::max<int64_t>(0, report.step - input_.Byte() % 2);
    report.load_tokens = static_cast<int64_t>(input_.Number() >> 24);
    for (int i = input_.Byte() % 4; i > 0; --i) {
      const RequestTokens tokens = {AnyId(), input_.Byte() % 4u};
      if (!MayReport(tokens.id, member)) continue;
      report.tokens.push_back(tokens);
      report.token_ids.insert(report.token_ids.end(), tokens.count, static_cast<uint32_t>(tokens.id));
    }
    // The edge rejects reports in which a request ends twice.
    std::set<RequestId> ended;
    for (int i = input_.Byte() % 4; i > 0; --i) {
      const RequestId id = input_.Byte() % 16u;
      if (!MayReport(id, member) || !ended.insert(id).second) continue;
      const uint8_t how = input_.Byte() % 4;
      if (how < 2) report.finished.push_back({id, how == 0 ? FinishReason::kLength : FinishReason::kStop});
      if (how == 2) report.rejected.push_back({id, absl::ResourceExhaustedError("fuzz")});
      if (how == 3) report.preempted.push_back(id);
    }
    Measure(report);
    report.group_idle = input_.Byte() % 2 == 0;
    if (input_.Byte() % 16 == 0) {
      report.barrier_error = "fuzz";
      report.missing_ranks = {input_.Byte(), input_.Byte() % 3u};
    }
    world_.Do([&](GroupSet& set, Commands& out) { set.OnReport(member, report, world_.now, out); }, member);
  }
  // The edge accepts any finite measurements.
  void Measure(StepReport& report) {
    const uint8_t took = input_.Byte();
    report.local = report.group_max_local = absl::Microseconds(took);
    if (took % 4 == 1) {
      report.cost.emplace();
      report.cost->c = bfio::FittedValue{took * 1e-6, 1e-7};
      report.cost->tl = bfio::FittedValue{took / 8 * 1e-8, 1e-10};
      report.batch_cost = bfio::GroupCost{{.c_s = took * 1e-3, .a_s_per_token = 1e-6}};
    }
    if (took % 4 == 2) {
      report.prefill = bfio::core::PrefillReport{took / 2, {}};
      for (uint8_t i = 0; i < took % 3; ++i)
        report.prefill->prompts.push_back({input_.Byte() % 16u, 1 + took});
    }
    if (took % 4 == 3) {
      report.energy.emplace();
      for (const RequestTokens& one : report.tokens) report.hints.push_back({one.id, took / 255.0});
    }
  }

  void Announce(MemberId member) {
    Announcement announcement;
    announcement.epoch = GroupOf(member).epoch();
    for (int i = input_.Byte() % 4; i > 0; --i) {
      const Owner owner = AnyOwner();
      const uint8_t how = input_.Byte();
      HeldRequest held = {.id = AnyId(), .first_index = how % 4u};
      held.request = {.request_id = owner.name,
                      .tenant = owner.tenant,
                      .prompt_tokens = 1 + how / 4 % 4u,
                      .max_new_tokens = 1 + input_.Byte() % 12u,
                      .resumable = true,
                      .resume_token = owner.secret};
      if (how / 16 % 2 == 0) held.request.prompt.assign(held.request.prompt_tokens, 7);
      held.tokens.assign(held.first_index + how / 32, static_cast<uint32_t>(held.id));
      if (input_.Byte() % 4 == 0 || held.tokens.size() == held.request.max_new_tokens)
        held.ended = FinishReason::kStop;
      // The edge accepts no others.
      if (!Owns(owner, held.id) || held.tokens.size() > held.request.max_new_tokens) continue;
      announcement.requests.push_back(std::move(held));
      announcement.bytes.push_back(input_.Byte());
    }
    world_.Do(
        [&](GroupSet& set, Commands& out) { set.OnAnnouncement(member, announcement, world_.now, out); },
        member);
  }

  // Without further faults, and when all workers answer, every group with enough members serves. A router
  // that ends leaves no request behind.
  void EndWell() {
    const auto waits = [&](const auto& group) {
      return !group->serving() && !group->empty() && group->next_deadline() != absl::InfiniteFuture();
    };
    const auto& groups = world_.groups().groups();
    for (int round = 0; round < 64 && std::any_of(groups.begin(), groups.end(), waits); ++round) {
      world_.Wait();
      for (const auto& group : groups) {
        for (const MemberView& member : group->Members()) Answer(member.id, {.epoch = group->epoch()});
      }
      CheckWorld();
    }
    Check(std::none_of(groups.begin(), groups.end(), waits),
          "a group whose members all answer serves in the end");
    RequestLifecycle& requests = world_.requests();
    requests.BeginDrain(world_.now);
    requests.EndAll(world_.now);
    for (const auto& [id, client] : world_.clients) Check(!client->open(), "every stream ends");
    Check(requests.live() == 0, "no request is live after the end");
    Check(world_.overload().committed_kv() == 0 && world_.overload().waiting_bytes() == 0,
          "bounds are given back");
    Check(world_.cluster().waiting() == 0, "nothing waits for a worker");
    requests.OnTimer(world_.now + world_.options().requests.resume.timeout);
    Check(requests.kept_bytes() == 0, "what was kept is forgotten in time");
    CheckWorld();
  }

  Input& input_;
  World world_;
  MemberId members_ = 0;
  std::map<RequestId, Owner> owners_;
  std::map<std::pair<MemberId, uint64_t>, int64_t> steps_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spdlog::set_level(spdlog::level::off);
  Input input(data, size);
  WorldOptions options;
  options.policy = "fcfs";
  options.overload = {.max_waiting = 6, .max_waiting_bytes = 64, .max_waiting_kv = 4};
  options.requests.resume.budget_bytes = 200;
  options.requests.resume.request_bytes = 60;
  options.requests.resume.max_early = 4;
  options.requests.resume.max_early_bytes = 100;
  options.requests.max_queue_time = absl::Seconds(8);
  const uint8_t kind = input.Byte();
  options.groups.group.workers = 1 + kind % 3;
  options.groups.groups = 1 + kind / 3 % 2;
  if (kind / 6 % 3 == 0) options.groups.group.kind = bfio::core::GroupKind::kIndependent;
  // Small, so that announcements reach the limit.
  options.groups.group.max_announced_bytes = 600;
  if (kind / 18 % 2 == 0) options.groups.group.plan_mode = bfio::core::PlanMode::kLockstep;
  Players players(input, options);
  if (kind >= 128) players.Form();
  players.Play();
  return 0;
}
