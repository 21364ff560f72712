// The router's side of the protocol with servers of chains: servers join, announce chains of an earlier
// router, report measurements, load parts, report failures and leave, in any order and at any time.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/router/chain_pool.h"
#include "common/base/spdlog.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz.h"

namespace {

using bfio::fuzz::Check;
using bfio::fuzz::Input;
using bfio::router::ChainPool;
namespace v1 = bfio::v1;

constexpr uint64_t kFirstChain = 100;

// The servers' side of the protocol: which server was given a part of which chain, and which servers have
// reported that their part is loaded.
class Servers {
 public:
  explicit Servers(const bfio::router::ChainOptions& options) : pool_(options, kFirstChain) {}

  void Join(ChainPool::Session session, const v1::ServerHello& hello, absl::Time now) {
    blocks_[session] = hello.blocks();
    Send(
        session, [&](v1::ServerMessage& message) { *message.mutable_hello() = hello; }, now);
  }
  // Delivers a message as the network layer does: a message that the pool refuses ends the stream.
  template <typename Fill>
  void Send(ChainPool::Session session, Fill fill, absl::Time now) {
    v1::ServerMessage message;
    fill(message);
    const uint64_t loaded = message.ready().chain();
    if (message.has_ready() && message.ready().error().empty()) ready_.insert({session, loaded});
    // A server that reports a failure ends the chain itself and gets no drop message for it.
    if (message.has_ready() && !message.ready().error().empty() && !started_.contains(loaded))
      End({session, loaded});
    if (message.has_broken()) End({session, message.broken().chain()});
    if (!pool_.OnMessage(session, message, now).ok()) pool_.OnGone(session, now), Forget(session);
    Take();
  }
  void Ready(ChainPool::Session session, uint64_t chain, const std::string& error, absl::Time now) {
    const auto fill = [&](v1::ServerMessage& message) {
      message.mutable_ready()->set_chain(chain);
      message.mutable_ready()->set_error(error);
    };
    Send(session, fill, now);
  }
  void Broken(ChainPool::Session session, uint64_t chain, absl::Time now) {
    Send(
        session, [&](v1::ServerMessage& message) { message.mutable_broken()->set_chain(chain); }, now);
  }
  void Leave(ChainPool::Session session, absl::Time now) {
    Forget(session);
    pool_.OnGone(session, now);
    Take();
  }
  void PassTime(absl::Time now) {
    pool_.OnTime(now);
    Take();
  }
  // Reports every requested part as loaded, and advances the time to each timer, until the pool has nothing
  // to do.
  void Settle(absl::Time now) {
    for (int round = 0; round < 200; ++round) {
      for (const auto& [session, chain] : std::set<Part>(parts_)) {
        if (!ready_.contains({session, chain})) Ready(session, chain, "", now);
      }
      if (pool_.NextTimer() == absl::InfiniteFuture()) break;
      now = std::max(now, pool_.NextTimer());
      PassTime(now);
    }
    Check(pool_.NextTimer() == absl::InfiniteFuture(), "a pool whose servers all answer comes to rest");
    Check(pool_.chains() >= static_cast<int64_t>(started_.size()), "what was started serves");
    for (const auto& [session, blocks] : std::map(blocks_)) Leave(session, now);
    Check(pool_.chains() == 0 && pool_.servers() == 0, "without servers there are no chains");
  }
  std::vector<ChainPool::Session> sessions() const {
    std::vector<ChainPool::Session> all;
    for (const auto& [session, blocks] : blocks_) all.push_back(session);
    return all;
  }
  // Number of the chain that was composed last.
  uint64_t newest() const { return newest_; }

 private:
  using Part = std::pair<ChainPool::Session, uint64_t>;

  void End(const Part& part) {
    if (parts_.erase(part) > 0) started_.erase(part.second);
  }
  void Forget(ChainPool::Session session) {
    blocks_.erase(session);
    for (const Part& part : std::set<Part>(parts_)) {
      if (part.first == session) End(part);
    }
    std::erase_if(ready_, [&](const Part& part) { return part.first == session; });
  }
  void Take() {
    for (const auto& [to, message] : pool_.TakeOutgoing()) {
      Check(blocks_.contains(to), "only who is there is spoken to");
      if (message.has_stage()) TakeStage(to, message.stage());
      if (message.has_start()) TakeStart(message.start().chain());
      if (message.has_drop()) {
        parts_.erase({to, message.drop().chain()});
        started_.erase(message.drop().chain());
      }
    }
  }
  void TakeStage(ChainPool::Session to, const v1::ChainStage& stage) {
    Check(stage.chain() >= kFirstChain, "numbers of earlier routers' chains are not used again");
    newest_ = std::max(newest_, stage.chain());
    Check(stage.hosted_first() <= stage.first_block() && stage.first_block() < stage.end_block() &&
              stage.end_block() <= stage.hosted_end() && stage.hosted_end() <= blocks_[to],
          "a part lies within what is hosted, and that within the model");
    Check(stage.stage() < stage.stages() && stage.slots() >= 1, "a part has its place and slots");
    Check(parts_.insert({to, stage.chain()}).second, "a server has one part of a chain");
  }
  void TakeStart(uint64_t chain) {
    for (const Part& part : parts_)
      Check(part.second != chain || ready_.contains(part), "a chain starts when all have loaded their parts");
    started_.insert(chain);
  }

  ChainPool pool_;
  std::map<ChainPool::Session, uint32_t> blocks_;
  std::set<Part> parts_, ready_;
  std::set<uint64_t> started_;
  uint64_t newest_ = kFirstChain;
};

v1::ServerHello HelloOf(Input& input) {
  v1::ServerHello hello;
  if (input.Byte() % 16 == 0) {
    hello.ParseFromString(input.Chunk());
    return hello;
  }
  const uint8_t id = input.Byte() % 12;
  hello.set_server_id(absl::StrCat("s", id));
  hello.set_pipeline_address(absl::StrCat("10.0.0.", id, ":1"));
  hello.set_memory_bytes(1 + input.Number() * 64);
  hello.set_blocks(6);
  hello.set_block_bytes(1000);
  hello.set_kv_token_bytes(1);
  hello.set_page_tokens(16);
  hello.set_max_positions(64);
  hello.set_model(input.Byte() % 16 == 0 ? "other" : "model");
  // Servers that report step times have equal or very different ones.
  if (input.Byte() % 2 == 0) hello.set_block_step_s(1e-9 * static_cast<double>(1 + input.Number()));
  hello.set_block_row_s(1e-9 * input.Byte());
  for (int i = input.Byte() % 16 - 12; i > 0; --i) {
    v1::ChainStage& stage = *hello.add_stages();
    stage.set_chain(input.Byte() % 4);
    stage.set_stage(input.Byte() % 3);
    stage.set_stages(input.Byte() % 4);
    stage.set_hosted_first(input.Byte() % 6);
    stage.set_hosted_end(1 + input.Byte() % 6);
    stage.set_first_block(stage.hosted_first());
    stage.set_end_block(stage.hosted_end() - input.Byte() % 2);
    stage.set_slots(input.Byte() % 4);
    stage.set_service_s(0.01 * input.Byte());
  }
  return hello;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  spdlog::set_level(spdlog::level::off);
  Input input(data, size);
  bfio::router::ChainOptions options;
  options.servers = 1 + input.Byte() % 3;
  options.slots = 1 + input.Byte() % 4;
  options.use_times = input.Byte() % 2 == 0;
  options.sequence_tokens = 64;
  Servers servers(options);
  absl::Time now = absl::UnixEpoch();
  for (ChainPool::Session next = 1; !input.empty() && next < 200; ++next) {
    const std::vector<ChainPool::Session> sessions = servers.sessions();
    const uint8_t what = sessions.empty() ? 0 : input.Byte() % 7;
    if (what == 0) {
      if (sessions.size() < 12) servers.Join(next, HelloOf(input), now);
      continue;
    }
    const ChainPool::Session session = sessions[input.Byte() % sessions.size()];
    const uint64_t chain = servers.newest() - std::min<uint64_t>(servers.newest(), input.Number());
    switch (what) {
      case 1:
      case 2: servers.Ready(session, chain, input.Byte() % 4 == 0 ? "fuzz" : "", now); break;
      case 3: servers.Broken(session, chain, now); break;
      case 4: servers.Leave(session, now); break;
      case 5:
        servers.Send(
            session, [&](v1::ServerMessage& message) { message.ParseFromString(input.Chunk()); }, now);
        break;
      default: now += absl::Milliseconds(100) * input.Byte(); servers.PassTime(now);
    }
  }
  servers.Settle(now);
  return 0;
}
