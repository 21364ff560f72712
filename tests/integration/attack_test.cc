// The effect of one faulty request or an unauthenticated client. Real programs over loopback.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/cluster.h"
#include "tests/testing/engine_alone.h"
#include "tests/testing/token_clients.h"
#include "tests/testing/unfinished_calls.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kLlama[] = "tests/golden/llama";
constexpr absl::Duration kAttackPatience = absl::Seconds(60 * kSlowdown);

ClusterOptions CpuWorkers(int workers, const std::string& model) {
  return {.worker_processes = workers,
          .worker_flags = {"--engine=cpu", absl::StrCat("--model=", model), "--slots=4", "--kv_tokens=4096",
                           "--token_budget=48"}};
}

// --- requests that fail or kill their workers ---

constexpr uint32_t kPoison = 77;

// The llama checkpoint with one token whose embedding is NaN: a prompt with this token has no finite logits.
std::string PoisonedModel() {
  const std::string folder = absl::StrCat(TestDirectory(), "/poisoned");
  if (std::filesystem::exists(folder)) return folder;
  std::filesystem::copy(kLlama, folder);
  std::fstream file(folder + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  std::string json(header, ' ');
  file.read(json.data(), static_cast<std::streamsize>(header));
  // "model.embed_tokens.weight":{"dtype":"F32","shape":[256,64],"data_offsets":[FROM,TO]}
  const std::string key = "\"data_offsets\":[";
  const size_t at = json.find(key, json.find("\"model.embed_tokens.weight\"")) + key.size();
  uint64_t from = 0;
  EXPECT_TRUE(absl::SimpleAtoi(json.substr(at, json.find(',', at) - at), &from));
  const std::vector<float> row(64, std::numeric_limits<float>::quiet_NaN());
  const auto bytes = static_cast<std::streamsize>(row.size() * sizeof(float));
  file.seekp(static_cast<std::streamoff>(8 + header + from) + kPoison * bytes);
  file.write(reinterpret_cast<const char*>(row.data()), bytes);
  return folder;
}

// Requests whose prompts and outputs do not contain the poisoned token.
struct Harmless {
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<uint32_t>> tokens;

  explicit Harmless(size_t count) {
    Rng rng(22);
    while (requests.size() < count) {
      v1::GenerateRequest request;
      for (uint64_t left = 1 + rng.Below(40); left > 0; --left)
        request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(kPoison)));
      request.set_max_new_tokens(120);
      request.set_ignore_eos(true);
      const auto alone = TokensAlone(kLlama, {request});
      if (std::count(alone[0].begin(), alone[0].end(), kPoison) > 0) continue;
      requests.push_back(request);
      tokens.push_back(alone[0]);
    }
  }
};

v1::GenerateRequest PoisonedRequest(int length) {
  v1::GenerateRequest request;
  for (int i = 0; i < length; ++i) request.mutable_token_ids()->add_ids(i == length / 2 ? kPoison : 5);
  request.set_max_new_tokens(20);
  return request;
}

TEST(QueryOfDeath, EndsWithInternalAndAffectsNoOtherRequest) {
  const Harmless harmless(8);
  Cluster cluster(CpuWorkers(3, PoisonedModel()));
  ASSERT_TRUE(cluster.ok());
  const uint64_t epoch = cluster.State().epoch();
  TokenClients clients(cluster, harmless.requests);
  clients.AwaitTokens(20);
  constexpr int kQueries = 6;
  for (int i = 0; i < kQueries; ++i) {
    // One is longer than a step: it fails in a later chunk of its prompt.
    const GenerateResult result =
        Generate(cluster.inference(), PoisonedRequest(i == 0 ? 100 : 1 + 7 * i), kAttackPatience);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL) << result.status.error_message();
    EXPECT_THAT(result.status.error_message(), HasSubstr("logits are not finite"));
    EXPECT_EQ(result.tokens.size(), 0u);
  }
  clients.ExpectTokens(harmless.tokens);
  for (Process& worker : cluster.workers())
    EXPECT_EQ(worker.Wait(absl::ZeroDuration()), std::nullopt) << worker.Stderr();
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.epoch(), epoch);
  EXPECT_EQ(state.requests().failed(), static_cast<uint64_t>(kQueries));
  EXPECT_EQ(state.requests().replayed(), 0u);
  // Their data in the KV cache does not affect later requests.
  TokenClients later(cluster, harmless.requests);
  later.ExpectTokens(harmless.tokens);
  cluster.StopCleanly();
}

// --- memory before authentication ---

// Resident memory of the process, in MiB.
double ResidentMib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    double kib = 0;
    if (line.rfind("VmRSS:", 0) != 0) continue;
    if (absl::SimpleAtod(line.substr(6, line.rfind(" kB") - 6), &kib)) return kib / 1024;
  }
  ADD_FAILURE() << "no VmRSS of process " << pid;
  return 0;
}

// A router without workers, and the addresses of its ports.
class LoneRouter {
 public:
  explicit LoneRouter(std::vector<std::string> flags) {
    for (const char* port : {"--listen=", "--worker_listen=", "--admin_listen="})
      flags.push_back(absl::StrCat(port, "127.0.0.1:0"));
    flags.emplace_back("--http_listen=");
    router_ = std::make_unique<Process>("bfio_router", flags);
    EXPECT_TRUE(router_->WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router_->Stderr();
    before_ = ResidentMib(router_->pid());
  }
  std::string After(const std::string& words) const { return AddressAfter(words, router_->Stdout()); }
  std::string Stderr() const { return router_->Stderr(); }
  // Growth of its memory since its start.
  double GrownMib() const { return ResidentMib(router_->pid()) - before_; }

 private:
  std::unique_ptr<Process> router_;
  double before_ = 0;
};

std::string TokensFile() {
  const std::string tokens = absl::StrCat(TestDirectory(), "/tokens");
  std::ofstream(tokens) << "acme token:acme-s3cr3t-acme-s3cr3t\n"
                           "smg token:smg-s3cr3t-smg-s3cr3t role=gateway\n";
  return tokens;
}

TEST(BeforeAuthentication, OneConnectionPinsNoMoreThan64Mib) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())});
  // No token, and no complete message.
  UnfinishedCalls attack(router.After("serving on "));
  constexpr int kCalls = 300;
  ASSERT_TRUE(attack.Send("/bfio.v1.Inference/Generate", kCalls, 1 << 20, 10 * kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), 64 * kSlowdown)
      << "MiB after " << (attack.sent_bytes() >> 20) << " MiB were let in and " << attack.refused() << " of "
      << kCalls << " calls refused";
}

// Other methods that a caller without a token can call, at both ports that require one: few calls with
// messages whose stated size exceeds every limit, and many connections.
TEST(BeforeAuthentication, NoMethodAndNoNumberOfConnectionsPinsMore) {
  const std::string tokens = TokensFile();
  const LoneRouter router(
      {absl::StrCat("--client_tokens=", tokens), absl::StrCat("--admin_tokens=", tokens)});
  const std::string client = router.After("serving on "), admin = router.After("admin on ");
  constexpr uint32_t kHuge = 200 << 20;
  std::vector<std::unique_ptr<UnfinishedCalls>> attacks;
  for (const auto& [address, method] :
       {std::pair<std::string, const char*>{client, "/bfio.v1.Inference/Generate"},
        {client, "/bfio.v1.Inference/GetLoads"},
        {client, "/bfio.v1.Inference/Abort"},
        {client, "/vllm.grpc.engine.VllmEngine/Generate"},
        {client, "/vllm.grpc.engine.VllmEngine/GetTokenizer"},
        {client, "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"},
        {client, "/grpc.health.v1.Health/Check"},
        {client, "/grpc.health.v1.Health/Watch"},
        {client, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"},
        {client, "/bfio.v1.WorkerLink/Attach"},
        {admin, "/bfio.v1.Admin/GetClusterState"},
        {admin, "/bfio.v1.Admin/WatchSteps"},
        {admin, "/bfio.v1.Admin/DrainWorker"},
        {admin, "/grpc.health.v1.Health/Watch"}}) {
    for (const auto& [calls, bytes] : {std::pair<int, uint32_t>{4, kHuge}, {100, 1 << 20}}) {
      attacks.push_back(std::make_unique<UnfinishedCalls>(address));
      // A call that stays open (a watch) only occupies its window, and does not delay other calls for long.
      ASSERT_TRUE(attacks.back()->Send(method, calls, bytes, kSlowdown * absl::Seconds(1))) << method;
      EXPECT_LT(router.GrownMib(), 64 * kSlowdown) << method << ", " << calls << " calls";
    }
  }
}

// A worker that serves parts of a model listens for its neighbours.
Process ChainServer() {
  return Process("bfio_worker",
                 {"--router=127.0.0.1:1", "--engine=cpu", "--model=tests/golden/llama", "--token_budget=48",
                  "--memory_limit_mb=64", "--pipeline_listen=127.0.0.1:0", "--connect_timeout=10m"});
}
bool Listens(const Process& chain_server) {
  return Eventually([&] { return CountOf(chain_server.Stderr(), "measured time of a block") > 0; });
}

// gRPC 1.51 checks the size of a header only when it has all of it.
TEST(BeforeAuthentication, HeadersWithoutAnEndPinNoMoreThan64MibAtAnyPort) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())});
  const Process worker = ChainServer();
  ASSERT_TRUE(Listens(worker)) << worker.Stderr();
  const double before = ResidentMib(worker.pid());
  for (const std::string& address :
       {router.After("serving on "), AddressAfter("listening for chains at ", worker.Stderr())}) {
    UnfinishedCalls attack(address);
    ASSERT_TRUE(attack.SendHeaders(uint64_t{512} << 20, 10 * kSlowdown * absl::Seconds(1)));
    EXPECT_TRUE(attack.ended());
  }
  EXPECT_LT(router.GrownMib(), 64 * kSlowdown);
  EXPECT_LT(ResidentMib(worker.pid()) - before, 64 * kSlowdown);
}

// GRPC 1.51 takes 60 bytes for each of these headers.
TEST(BeforeAuthentication, HeadersOfOneByteOnManyConnectionsPinNoMoreThan64Mib) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())});
  std::vector<std::unique_ptr<UnfinishedCalls>> attacks;
  for (int i = 0; i < 100; ++i) {
    attacks.push_back(std::make_unique<UnfinishedCalls>(router.After("serving on ")));
    ASSERT_TRUE(
        attacks.back()->SendHeaders(240 << 10, kSlowdown * absl::Milliseconds(100), /*indexed=*/true));
    ASSERT_LT(router.GrownMib(), 64 * kSlowdown) << i;
  }
}

// Without authentication another bound applies: 64 MiB of messages that are received at the same time, and a
// window of 64 KiB for each call that waits until it may be received.
// Each attack sends up to 600 MiB. How much of it a bounded router holds depends on when its threads run;
// half of one attack is far above that, and far below what a router without a bound would hold.
TEST(WithoutAuthentication, UnfinishedCallsHaveABoundToo) {
  const LoneRouter router({});
  constexpr double kHalfMib = 300;
  UnfinishedCalls attack(router.After("serving on "));
  ASSERT_TRUE(attack.Send("/bfio.v1.Inference/Generate", 600, 1 << 20, 3 * kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), kHalfMib * kSlowdown) << (attack.sent_bytes() >> 20) << " MiB were let in";
  // The port's other API, while the first attack is still connected.
  UnfinishedCalls other(router.After("serving on "));
  ASSERT_TRUE(
      other.Send("/vllm.grpc.engine.VllmEngine/Generate", 600, 1 << 20, kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), kHalfMib * kSlowdown) << (other.sent_bytes() >> 20) << " MiB were let in";
}

// --- what one peer takes from others ---

// That the streams of one that sends nothing delay nobody else, tests/chaos/greedy_run.cc shows at every
// port.
constexpr char kAcme[] = "acme-s3cr3t-acme-s3cr3t", kGateway[] = "smg-s3cr3t-smg-s3cr3t";
constexpr char kPick[] = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

LoneRouter Picker() {
  return LoneRouter({"--picker_listen=127.0.0.1:0", "--engines=http://127.0.0.1:1"});
}

// The status of a call that the router answers by itself.
grpc::Status GetLoads(const std::string& address, const std::string& token, const std::string& tenant = "") {
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  if (!tenant.empty()) context.AddMetadata("bfio-tenant", tenant);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60 * kSlowdown));
  v1::GetLoadsResponse loads;
  return stub->GetLoads(&context, {}, &loads);
}

// An authenticated connection counts as one at each port, whatever ports there are.
TEST(Connections, OfCallersWithATokenDoNotEnd) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile()), "--picker_listen=127.0.0.1:0",
                           "--engines=http://127.0.0.1:1"});
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(router.After("serving on "), grpc::InsecureChannelCredentials()));
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", absl::StrCat("Bearer ", kAcme));
    v1::GetLoadsResponse loads;
    const grpc::Status status = stub->GetLoads(&context, {}, &loads);
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

// Messages that announce 600 MiB: beyond 512 MiB gRPC would end streams of any caller.
TEST(GreedyPeer, AnnouncedSizesDoNotReachTheQuotaOfThePort) {
  const LoneRouter router({});
  for (const auto& [port, method] :
       {std::pair<std::string, const char*>{"serving on ", "/bfio.v1.Inference/Generate"},
        {"workers on ", "/bfio.v1.WorkerLink/Attach"}}) {
    UnfinishedCalls greedy(router.After(port));
    ASSERT_TRUE(greedy.Send(method, 3, 200 << 20, 2 * kSlowdown * absl::Seconds(1)));
    EXPECT_LT(router.GrownMib(), 300 * kSlowdown) << (greedy.sent_bytes() >> 20) << " MiB were let in";
    EXPECT_GT(greedy.refused(), 0) << method;
  }
}

// The same with messages after a worker's first one.
TEST(GreedyPeer, AnnouncedSizesOfAnAttachedWorkerEndItsConnectionAlone) {
  const LoneRouter router({});
  const std::string port = router.After("workers on ");
  v1::WorkerMessage message;
  message.mutable_hello()->set_slots(1);
  message.mutable_hello()->set_kv_tokens(100);
  message.mutable_hello()->set_max_sequence_tokens(100);
  message.mutable_hello()->set_worker_id("greedy");
  const std::string hello = message.SerializeAsString();
  message.mutable_hello()->set_worker_id("other");
  const auto stub = v1::WorkerLink::NewStub(grpc::CreateChannel(port, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto other = stub->Attach(&context);
  ASSERT_TRUE(other->Write(message));
  UnfinishedCalls greedy(port);
  ASSERT_TRUE(
      greedy.Send("/bfio.v1.WorkerLink/Attach", 3, 200 << 20, 2 * kSlowdown * absl::Seconds(1), hello));
  EXPECT_TRUE(greedy.ended());
  EXPECT_LT(router.GrownMib(), 256 * kSlowdown) << (greedy.sent_bytes() >> 20) << " MiB were let in";
  v1::WorkerMessage leave;
  leave.mutable_leave();
  EXPECT_TRUE(other->Write(leave)) << "it is still attached";
  context.TryCancel();
}

// The same from a neighbour in a chain. Another is heard meanwhile: its first message must be `open`.
TEST(GreedyPeer, AnnouncedSizesAtAChainsPortHaveABound) {
  const Process worker = ChainServer();
  ASSERT_TRUE(Listens(worker)) << worker.Stderr();
  const double before = ResidentMib(worker.pid());
  const std::string port = AddressAfter("listening for chains at ", worker.Stderr());
  UnfinishedCalls greedy(port);
  ASSERT_TRUE(greedy.Send("/bfio.v1.Pipeline/Pass", 40, 31 << 20, 2 * kSlowdown * absl::Seconds(1)));
  UnfinishedCalls other(port);
  ASSERT_TRUE(other.Send("/bfio.v1.Pipeline/Pass", 1, 1, kAttackPatience, std::string("\x12\0", 2)));
  EXPECT_TRUE(Eventually([&] {
    other.Read();
    return other.refused() == 1;
  })) << other.ended()
      << worker.Stderr();
  EXPECT_LT(ResidentMib(worker.pid()) - before, 64 * kSlowdown)
      << (greedy.sent_bytes() >> 20) << " MiB were let in";
}

// 6 MB of calls that are reset at once would take gRPC 450 to 850 MiB. How much of the bound's 60 MiB per
// connection becomes more depends on when the router's threads run.
TEST(GreedyPeer, ResetsEndTheirConnectionAndDelayNoOther) {
  const LoneRouter router({});
  const std::string client = router.After("serving on ");
  for (const char* method :
       {"/bfio.v1.Inference/Generate", "/grpc.health.v1.Health/Check", "/no.Such/Method"}) {
    UnfinishedCalls greedy(client);
    ASSERT_TRUE(greedy.SendResets(method, 60'000, kAttackPatience));
    EXPECT_TRUE(greedy.ended()) << method;
    EXPECT_NE(GetLoads(client, "").error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_LT(router.GrownMib(), 350 * kSlowdown) << method;
  }
}

// The connections of a gateway, and of Envoy, carry the calls of many tenants: none ends for one.
TEST(GreedyPeer, ResetsBehindAGatewayDelayNoOther) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())}), picker = Picker();
  const std::string client = router.After("serving on ");
  UnfinishedCalls greedy(client, kGateway, "greedy"), envoy(picker.After("picker for Envoy on "));
  ASSERT_TRUE(greedy.SendResets("/bfio.v1.Inference/Generate", 60'000, kAttackPatience));
  EXPECT_NE(GetLoads(client, kGateway, "other").error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(envoy.SendResets(kPick, 60'000, kAttackPatience));
  EXPECT_FALSE(greedy.ended() || envoy.ended());
}

// --- what one client can learn or block ---

// Ids that the router generates are not counters, so they reveal neither the number of requests nor the time.
TEST(GeneratedIds, CannotBeGuessed) {
  Cluster cluster(ClusterOptions{.worker_processes = 1});
  ASSERT_TRUE(cluster.ok());
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    const auto reader = cluster.inference().Generate(&context, SyntheticRequest(10, 1));
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    ids.push_back(response.request_id());
    // At least 64 random bits, in any encoding.
    EXPECT_GE(ids[i].size(), 16u) << ids[i];
    context.TryCancel();
  }
  // The ids may share a prefix that is a word; 8 of 16 random hex digits agree with probability 1/4e9.
  for (const int i : {0, 1}) {
    const auto shared =
        std::mismatch(ids[i].begin(), ids[i].end(), ids[i + 1].begin(), ids[i + 1].end()).first;
    EXPECT_LT(shared - ids[i].begin(), static_cast<int64_t>(ids[i].size()) - 8)
        << ids[i] << " " << ids[i + 1];
  }
}

// A line of protobuf's own for each such message would wait for a reader of standard error.
TEST(BlockedLogs, GetNoLinesForTextThatIsNotUtf8) {
  const LoneRouter router({});
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(router.After("serving on "), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request = SyntheticRequest(10, 1);
  request.set_request_id("\xff");
  EXPECT_EQ(Generate(*stub, request, kAttackPatience).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(router.Stderr(), "");
}

}  // namespace
}  // namespace bfio::testing
