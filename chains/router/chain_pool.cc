#include "chains/router/chain_pool.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"

namespace bfio::router {
namespace {

constexpr size_t kMaxServers = core::kMostServers;
// Bounds that keep the sums of a composition within 64 bits.
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
constexpr uint64_t kMaxTokenBytes = uint64_t{1} << 30;
constexpr uint32_t kMaxBlocks = core::kMostBlocks;
constexpr uint32_t kMaxSlots = 1 << 16;
// Upper bound of the parts that one server may announce: each may name a chain of kMaxServers.
constexpr int kMaxStages = 256;
constexpr double kLeastTime = 1e-9, kMostTime = 1e6;

absl::Status CheckHello(const v1::ServerHello& hello) {
  const auto bad = [](absl::string_view field) {
    return absl::InvalidArgumentError(absl::StrCat("ServerHello.", field, " is missing or out of range"));
  };
  if (hello.server_id().empty() || hello.server_id().size() > 200) return bad("server_id");
  if (hello.pipeline_address().empty() || hello.pipeline_address().size() > 300) {
    return bad("pipeline_address");
  }
  if (hello.model().empty() || hello.model().size() > 1000) return bad("model");
  if (hello.memory_bytes() < 1 || hello.memory_bytes() > kMaxBytes) return bad("memory_bytes");
  if (hello.blocks() < 1 || hello.blocks() > kMaxBlocks) return bad("blocks");
  if (hello.block_bytes() < 1 || hello.block_bytes() > kMaxBytes) return bad("block_bytes");
  if (hello.ends_bytes() > kMaxBytes) return bad("ends_bytes");
  if (hello.kv_token_bytes() < 1 || hello.kv_token_bytes() > kMaxTokenBytes) return bad("kv_token_bytes");
  if (hello.page_tokens() < 1 || hello.page_tokens() > 4096) return bad("page_tokens");
  if (hello.max_positions() < 2) return bad("max_positions");
  if (hello.version().size() > 100) return bad("version");
  if (hello.stages_size() > kMaxStages) return bad("stages");
  const double step = hello.block_step_s(), row = hello.block_row_s();
  if (!(step == 0 || (step >= kLeastTime && step <= kMostTime))) return bad("block_step_s");
  if (!(row >= 0 && row <= kMostTime)) return bad("block_row_s");
  return absl::OkStatus();
}

}  // namespace

ChainPool::ChainPool(const ChainOptions& options, uint64_t first_chain)
    : options_(options), first_chain_(first_chain), next_chain_(first_chain) {}

absl::Status ChainPool::OnMessage(Session session, const v1::ServerMessage& message, absl::Time now) {
  const auto found = servers_.find(session);
  if (message.has_hello()) {
    if (found != servers_.end()) return absl::InvalidArgumentError("a stream may send ServerHello only once");
    return OnHello(session, message.hello(), now);
  }
  if (found == servers_.end())
    return absl::InvalidArgumentError("the first message of a stream must be ServerHello");
  if (message.has_ready()) return OnReady(session, message.ready(), now);
  if (!message.has_broken())
    return absl::InvalidArgumentError("ServerMessage is empty; set hello, ready or broken");
  const uint64_t chain = message.broken().chain();
  if (found->second.chains.contains(chain)) {
    EndChain(chain, absl::StrCat(found->second.hello.server_id(), ": ", PeerText(message.broken().reason())),
             session, now);
  }
  return absl::OkStatus();
}

absl::Status ChainPool::CheckAgrees(const v1::ServerHello& hello) const {
  for (const auto& [other, server] : servers_) {
    if (server.hello.version() != hello.version()) {
      return absl::FailedPreconditionError(absl::StrCat("the servers of this pool run version ",
                                                        server.hello.version(), ", not ", hello.version()));
    }
    if (server.hello.model() != hello.model()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the model of this pool is ", server.hello.model(), ", not ", hello.model(),
                       " (engine:family:LAYERSxWIDTH:page tokens/token budget:digest)"));
    }
    // Chains are composed with the sizes of the first server, so all must agree.
    if (server.hello.blocks() != hello.blocks() || server.hello.block_bytes() != hello.block_bytes() ||
        server.hello.ends_bytes() != hello.ends_bytes() ||
        server.hello.kv_token_bytes() != hello.kv_token_bytes() ||
        server.hello.page_tokens() != hello.page_tokens()) {
      return absl::FailedPreconditionError(
          absl::StrCat("servers with the model ", PeerText(hello.model()),
                       " report different sizes of blocks, KV cache or pages"));
    }
  }
  return absl::OkStatus();
}

bool ChainPool::AllFree() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const auto& entry) { return entry.second.chains.empty(); });
}

void ChainPool::PutOut(const absl::Status& why) {
  for (const auto& [session, server] : servers_) {
    spdlog::warn("chains: server {} is disconnected in favour of a server that already has chains: {}",
                 server.hello.server_id(), std::string(why.message()));
    put_out_.push_back(session);
  }
  servers_.clear();
}

absl::Status ChainPool::OnHello(Session session, const v1::ServerHello& hello, absl::Time now) {
  if (absl::Status status = CheckHello(hello); !status.ok()) return status;
  TakeOver(hello, now);
  if (servers_.size() >= kMaxServers) {
    return absl::ResourceExhaustedError(absl::StrCat("the pool already has ", kMaxServers, " servers"));
  }
  for (const auto& [other, server] : servers_) {
    if (server.hello.server_id() == hello.server_id()) {
      return absl::AlreadyExistsError(
          absl::StrCat("a server named ", hello.server_id(), " is already connected"));
    }
  }
  if (absl::Status status = CheckAgrees(hello); !status.ok()) {
    if (hello.stages().empty() || !AllFree()) return status;
    PutOut(status);
  }
  Server& server = servers_[session];
  server.hello = hello;
  server.hello.clear_stages();
  spdlog::info("chains: server {} joined with {:.1f} MiB of memory", hello.server_id(),
               static_cast<double>(hello.memory_bytes()) / (1 << 20));
  for (const v1::ChainStage& stage : hello.stages()) RecoverStage(session, server, stage, now);
  SettleFrom(now);
  return absl::OkStatus();
}

void ChainPool::TakeOver(const v1::ServerHello& hello, absl::Time now) {
  if (hello.server_instance() == 0) return;
  const auto before = std::find_if(servers_.begin(), servers_.end(), [&](const auto& entry) {
    const v1::ServerHello& other = entry.second.hello;
    return other.server_id() == hello.server_id() && other.server_instance() == hello.server_instance() &&
           other.stream() < hello.stream();
  });
  if (before != servers_.end()) OnGone(before->first, now);
}

std::optional<std::vector<core::ServerTimes>> ChainPool::MeasuredTimes(
    const std::vector<Session>& sessions) const {
  if (!options_.use_times) return std::nullopt;
  std::vector<double> compute_s;
  for (const Session session : sessions) {
    const v1::ServerHello& hello = servers_.at(session).hello;
    compute_s.push_back(hello.block_step_s() > 0 ? options_.job.output_tokens * hello.block_step_s() +
                                                       options_.job.input_tokens * hello.block_row_s()
                                                 : 0);
  }
  return TimesOf(compute_s);
}

void ChainPool::RecoverStage(Session session, Server& server, const v1::ChainStage& stage, absl::Time now) {
  v1::PoolMessage drop;
  drop.mutable_drop()->set_chain(stage.chain());
  drop.mutable_drop()->set_reason("the router does not have this chain any more");
  const BlockRange hosts = {static_cast<int32_t>(stage.hosted_first()),
                            static_cast<int32_t>(stage.hosted_end() - stage.hosted_first())};
  const bool sound = stage.chain() != 0 && stage.stages() >= 1 && stage.stages() <= kMaxServers &&
                     stage.stage() < stage.stages() && stage.slots() <= kMaxSlots &&
                     stage.hosted_first() <= stage.first_block() && stage.first_block() < stage.end_block() &&
                     stage.end_block() <= stage.hosted_end() && stage.hosted_end() <= server.hello.blocks() &&
                     (server.chains.empty() || server.hosts == hosts) &&
                     !server.chains.contains(stage.chain());
  if (stage.chain() >= first_chain_ || !sound) return Send(session, std::move(drop));
  Chain& chain = chains_[stage.chain()];
  if (chain.stages.empty()) {
    chain.stages.resize(stage.stages());
    chain.ready.assign(stage.stages(), false);
    chain.deadline = now + options_.step_timeout;
    chain.slots = stage.slots();
    if (stage.service_s() >= kLeastTime && stage.service_s() <= kMostTime && stage.slots() > 0)
      chain.rate = 1 / stage.service_s();
  }
  if (chain.stages.size() != stage.stages() || chain.stages[stage.stage()].has_value()) {
    return Send(session, std::move(drop));
  }
  chain.stages[stage.stage()] = session;
  chain.ready[stage.stage()] = true;
  server.hosts = hosts;
  server.chains[stage.chain()] = int64_t{stage.slots()} * (stage.end_block() - stage.first_block());
  if (std::all_of(chain.stages.begin(), chain.stages.end(), [](const auto& s) { return s.has_value(); })) {
    chain.serving = true;
    chain.deadline = absl::InfiniteFuture();
    spdlog::info("chain {}: recovered, {} servers", stage.chain(), chain.stages.size());
  }
}

absl::Status ChainPool::OnReady(Session session, const v1::ChainReady& ready, absl::Time now) {
  Server& server = servers_[session];
  const auto found = chains_.find(ready.chain());
  // The chain has ended meanwhile.
  if (found == chains_.end() || !server.chains.contains(ready.chain()) || found->second.serving) {
    return absl::OkStatus();
  }
  if (!ready.error().empty()) {
    server.failed = true;
    EndChain(ready.chain(),
             absl::StrCat(server.hello.server_id(), " cannot load its blocks: ", PeerText(ready.error())),
             session, now);
    return absl::OkStatus();
  }
  Chain& chain = found->second;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    if (chain.stages[i] == session) chain.ready[i] = true;
  }
  if (!std::all_of(chain.ready.begin(), chain.ready.end(), [](bool one) { return one; })) {
    return absl::OkStatus();
  }
  chain.serving = true;
  chain.deadline = absl::InfiniteFuture();
  spdlog::info("chain {}: {} servers are ready", ready.chain(), chain.stages.size());
  v1::PoolMessage start;
  start.mutable_start()->set_chain(ready.chain());
  for (const auto& stage : chain.stages) Send(*stage, start);
  return absl::OkStatus();
}

void ChainPool::OnGone(Session session, absl::Time now) {
  const auto found = servers_.find(session);
  if (found == servers_.end()) return;
  const std::string id = found->second.hello.server_id();
  const auto chains = std::move(found->second.chains);
  servers_.erase(found);
  spdlog::warn("chains: server {} disconnected", id);
  for (const auto& [chain, slots] : chains) EndChain(chain, absl::StrCat(id, " disconnected"), session, now);
}

void ChainPool::EndChain(uint64_t chain, const std::string& why, Session except, absl::Time now) {
  const auto found = chains_.find(chain);
  if (found == chains_.end()) return;
  spdlog::warn("chain {}: ended: {}", chain, why);
  for (const auto& stage : found->second.stages) {
    if (!stage.has_value()) continue;
    if (const auto server = servers_.find(*stage); server != servers_.end())
      server->second.chains.erase(chain);
    if (*stage == except) continue;
    v1::PoolMessage drop;
    drop.mutable_drop()->set_chain(chain);
    drop.mutable_drop()->set_reason(why);
    Send(*stage, std::move(drop));
  }
  chains_.erase(found);
  SettleFrom(now);
}

void ChainPool::OnTime(absl::Time now) {
  std::vector<uint64_t> late;
  for (const auto& [number, chain] : chains_) {
    if (chain.deadline <= now) late.push_back(number);
  }
  for (const uint64_t number : late) {
    const Chain& chain = chains_[number];
    std::string who;
    for (size_t i = 0; i < chain.stages.size(); ++i) {
      if (chain.ready[i]) continue;
      const auto server = chain.stages[i] ? servers_.find(*chain.stages[i]) : servers_.end();
      if (server == servers_.end()) continue;
      server->second.failed = true;
      absl::StrAppend(&who, who.empty() ? "" : ", ", server->second.hello.server_id());
    }
    EndChain(number, absl::StrCat("servers not ready in time: ", who), 0, now);
  }
  if (now >= compose_at_) Compose(now);
}

absl::Time ChainPool::NextTimer() const {
  absl::Time next = compose_at_;
  for (const auto& [number, chain] : chains_) next = std::min(next, chain.deadline);
  return next;
}

int64_t ChainPool::SequenceTokens(const v1::ServerHello& hello) const {
  constexpr uint64_t kMost = 1 << 24;
  return std::min(options_.sequence_tokens, static_cast<int64_t>(std::min(hello.max_positions(), kMost)));
}

core::BlockSizes ChainPool::SizesOf(const v1::ServerHello& hello) const {
  // Rounded up to whole pages, plus the one more page per sequence that a cache has (worker/kv/page_table.h).
  const auto page = static_cast<int64_t>(hello.page_tokens());
  const int64_t pages = (SequenceTokens(hello) + page - 1) / page + 1;
  return {static_cast<int32_t>(hello.blocks()), static_cast<int64_t>(hello.block_bytes()),
          static_cast<int64_t>(hello.kv_token_bytes()) * page * pages};
}

void ChainPool::Compose(absl::Time now) {
  compose_at_ = absl::InfiniteFuture();
  if (!composed_ && servers() < options_.servers) return;
  const Members members = MembersNow();
  if (!members.any_free) return;
  composed_ = true;
  const core::BlockSizes sizes = SizesOf(servers_[members.sessions[0]].hello);
  if (members.measured) composed_pool_ = {members.servers, sizes};
  const auto plan =
      core::PlanChains(members.servers, sizes, options_.slots, members.measured, members.standing);
  if (!plan.ok()) {
    spdlog::warn("chains: cannot compose a chain of the free servers: {}",
                 std::string(plan.status().message()));
    return;
  }
  for (size_t j = 0; j < members.sessions.size(); ++j)
    servers_[members.sessions[j]].hosts = plan->placement[j];
  for (const core::ServerChain& chain : plan->chains)
    Begin(chain, members.sessions, members.measured ? chain.time : 0, now);
}

ChainPool::Members ChainPool::MembersNow() const {
  std::map<std::string, Session> names;
  for (const auto& [session, server] : servers_) names[server.hello.server_id()] = session;
  Members members;
  for (const auto& [name, session] : names) {
    const Server& server = servers_.at(session);
    // Every server reserves memory for the ends of the model, because any may become a head.
    const int64_t memory =
        static_cast<int64_t>(server.hello.memory_bytes()) - static_cast<int64_t>(server.hello.ends_bytes());
    if (server.failed || memory <= 0) continue;
    core::PoolServer& one = members.servers.emplace_back();
    members.sessions.push_back(session);
    one.name = name;
    one.memory = memory;
    members.any_free |= server.chains.empty();
    if (server.chains.empty()) continue;
    one.hosts = server.hosts;
    for (const auto& [chain, slots] : server.chains) one.slots_used += slots;
  }
  const auto times = MeasuredTimes(members.sessions);
  members.measured = times.has_value();
  for (size_t j = 0; times.has_value() && j < times->size(); ++j) members.servers[j].times = (*times)[j];
  for (const auto& [number, chain] : chains_) {
    core::ExistingChain& one = members.standing.emplace_back();
    one.rate = chain.rate;
    one.slots = chain.slots;
    for (const auto& stage : chain.stages) {
      const auto at = std::find(members.sessions.begin(), members.sessions.end(), stage.value_or(0));
      // A server that is not in the pool: no new chain can have it.
      one.servers.push_back(
          at == members.sessions.end() ? -1 : static_cast<int32_t>(at - members.sessions.begin()));
    }
  }
  return members;
}

void ChainPool::Begin(const core::ServerChain& plan, const std::vector<Session>& sessions, double service_s,
                      absl::Time now) {
  const uint64_t number = next_chain_++;
  Chain& chain = chains_[number];
  chain.deadline = now + options_.load_timeout;
  chain.slots = plan.capacity;
  if (service_s > 0) chain.rate = 1 / service_s;
  chain.ready.assign(plan.hops.size(), false);
  std::string text;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const core::ChainHop& hop = plan.hops[i];
    const Session session = sessions[hop.server];
    const Session next = sessions[plan.hops[(i + 1) % plan.hops.size()].server];
    Server& server = servers_[session];
    server.chains[number] = plan.capacity * hop.range.count;
    chain.stages.push_back(session);
    v1::PoolMessage message;
    v1::ChainStage* to = message.mutable_stage();
    to->set_chain(number);
    to->set_stage(static_cast<uint32_t>(i));
    to->set_stages(static_cast<uint32_t>(plan.hops.size()));
    to->set_first_block(static_cast<uint32_t>(hop.range.first));
    to->set_end_block(static_cast<uint32_t>(hop.range.end()));
    to->set_hosted_first(static_cast<uint32_t>(server.hosts.first));
    to->set_hosted_end(static_cast<uint32_t>(server.hosts.end()));
    to->set_slots(static_cast<uint32_t>(plan.capacity));
    to->set_kv_tokens(static_cast<uint64_t>(plan.capacity * SequenceTokens(server.hello)));
    to->set_max_sequence_tokens(static_cast<uint64_t>(SequenceTokens(server.hello)));
    to->set_service_s(service_s);
    to->set_successor(servers_[next].hello.pipeline_address());
    to->set_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.step_timeout)));
    Send(session, std::move(message));
    absl::StrAppend(&text, " ", server.hello.server_id(), "[", hop.range.first, ",", hop.range.end(), ")");
  }
  const std::string expected =
      service_s > 0 ? absl::StrCat(", ", absl::SixDigits(service_s), " s for a mean request") : "";
  spdlog::info("chain {}: {} concurrent requests{}, servers{}", number, plan.capacity, expected, text);
}

int64_t ChainPool::chains() const {
  return std::count_if(chains_.begin(), chains_.end(), [](const auto& one) { return one.second.serving; });
}

std::vector<ChainPool::Outgoing> ChainPool::TakeOutgoing() {
  return std::exchange(outgoing_, {});
}

std::optional<std::vector<core::ServerTimes>> TimesOf(absl::Span<const double> compute_s) {
  std::vector<double> measured;
  std::copy_if(compute_s.begin(), compute_s.end(), std::back_inserter(measured),
               [](double seconds) { return seconds > 0; });
  if (measured.empty()) return std::nullopt;
  std::sort(measured.begin(), measured.end());
  const double median = measured[(measured.size() - 1) / 2];
  std::vector<core::ServerTimes> times;
  for (const double seconds : compute_s) {
    const bool usual = seconds <= median * (1 + kSameWithin) && median <= seconds * (1 + kSameWithin);
    times.push_back({seconds > 0 && !usual ? seconds : median, median});
  }
  return times;
}

}  // namespace bfio::router
