#include "router/engine_link/http/pod_watch.h"

#include <pthread.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "common/base/peer_text.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "router/engine_link/http/http_engine.h"

namespace bfio::router {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.bytes = HttpClient::kMostAnswerBytes};
// The API's own bounds of names and of an InferencePool's ports.
constexpr size_t kMostNameBytes = 253, kMostPorts = 8;

// Null: there is none.
const Json* At(const Json& object, std::initializer_list<const char*> names) {
  const Json* at = &object;
  for (const char* name : names) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(name);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}
// Empty: there is none.
std::string TextAt(const Json& object, std::initializer_list<const char*> names) {
  const Json* const at = At(object, names);
  return at != nullptr && at->is_string() ? at->get<std::string>() : "";
}

// It may be a part of a query as it is, but for '/'.
bool IsToken(absl::string_view text, absl::string_view more = "-_=") {
  constexpr size_t kMostBytes = 4096;
  return !text.empty() && text.size() <= kMostBytes && std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(more, c);
  });
}

absl::StatusOr<std::string> BodyOf(absl::StatusOr<HttpClient::Answer> answer) {
  BFIO_RETURN_IF_ERROR(answer.status());
  if (answer->status == 200) return std::move(answer->body);
  return absl::FailedPreconditionError(absl::StrCat("status ", answer->status));
}

}  // namespace

absl::StatusOr<Pod> ReadPod(const Json& object) {
  Pod pod = {TextAt(object, {"metadata", "name"}), ""};
  if (pod.name.empty() || pod.name.size() > kMostNameBytes)
    return absl::InvalidArgumentError("a pod has no name");
  if (At(object, {"metadata", "deletionTimestamp"}) != nullptr) return pod;
  const Json* const conditions = At(object, {"status", "conditions"});
  const bool ready =
      conditions != nullptr && conditions->is_array() &&
      std::any_of(conditions->begin(), conditions->end(), [](const Json& condition) {
        return TextAt(condition, {"type"}) == "Ready" && TextAt(condition, {"status"}) == "True";
      });
  const std::string host = TextAt(object, {"status", "podIP"});
  if (!ready || host.empty()) return pod;
  if (!IsIpAddress(host)) return absl::InvalidArgumentError("a pod's podIP is no IP address");
  pod.host = host;
  return pod;
}

absl::StatusOr<Pool> ReadPool(const Json& object) {
  Pool pool;
  const Json* const labels = At(object, {"spec", "selector", "matchLabels"});
  if (labels == nullptr || !labels->is_object() || labels->empty())
    return absl::InvalidArgumentError("the pool selects by no labels");
  for (const auto& [name, value] : labels->items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : "/";
    if (!IsToken(name, "-_./") || (!text.empty() && !IsToken(text, "-_.")))
      return absl::InvalidArgumentError("a label of the pool's selector is none");
    absl::StrAppend(&pool.selector, pool.selector.empty() ? "" : ",", name, "=", text);
  }
  const Json* const ports = At(object, {"spec", "targetPorts"});
  if (ports == nullptr || !ports->is_array() || ports->empty() || ports->size() > kMostPorts)
    return absl::InvalidArgumentError(absl::StrCat("the pool must have 1 to ", kMostPorts, " targetPorts"));
  for (const Json& port : *ports) {
    const Json* const number = At(port, {"number"});
    if (number == nullptr || !number->is_number_unsigned() || number->get<uint64_t>() - 1 >= 65535)
      return absl::InvalidArgumentError("a port of the pool is none");
    pool.ports.push_back(number->get<uint16_t>());
  }
  return pool;
}

PodWatch::PodWatch(const EngineAddress& engine, ResolveHost resolve)
    : namespace_(engine.pool.substr(0, engine.pool.find('/'))),
      name_(engine.pool.substr(engine.pool.find('/') + 1)),
      api_server_(engine.api_server),
      login_(LoginOf({.server = engine.api_server,
                      .tls = {.ca = engine.api_files + "/ca.crt"},
                      .token_file = engine.api_files + "/token"})),
      resolve_(std::move(resolve)),
      thread_([this] { Run(); }) {}

PodWatch::~PodWatch() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
}

absl::StatusOr<std::vector<Address>> PodWatch::Servers() {
  MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&known_), kPatience);
  if (!known_) return absl::DeadlineExceededError("the API server does not answer");
  BFIO_RETURN_IF_ERROR(status_);
  std::set<std::string> hosts;
  for (const auto& [name, host] : pods_)
    if (!host.empty()) hosts.insert(host);
  std::vector<Address> servers;
  for (const std::string& host : hosts)
    for (const uint16_t port : pool_.ports) servers.push_back({host, port});
  return servers;
}

void PodWatch::Run() {
  pthread_setname_np(pthread_self(), "bfio-pods");
  for (;;) {
    const absl::Status end = Follow();
    MutexLock lock(&mutex_);
    status_ = absl::Status(end.code(),
                           absl::StrCat("https://", api_server_.ToString(), ": ", PeerText(end.message())));
    known_ = true;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopped_), pause_)) return;
    pause_ = std::min(2 * pause_, kLongestPause);
  }
}

absl::Status PodWatch::Follow() {
  BFIO_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, resolve_(api_server_.host));
  if (hosts.empty()) return absl::NotFoundError("the name has no addresses");
  const std::string pool_path = absl::StrCat("/apis/inference.networking.k8s.io/v1/namespaces/", namespace_,
                                             "/inferencepools?fieldSelector=metadata.name%3D", name_);
  std::optional<Pool> pool;
  // Ended before what its calls use.
  HttpClient client({hosts.front(), api_server_.port}, login_);
  BFIO_ASSIGN_OR_RETURN(const std::string pool_version, List(client, pool_path, [&](const Json& object) {
                          BFIO_ASSIGN_OR_RETURN(pool, ReadPool(object));
                          return absl::OkStatus();
                        }));
  if (!pool) return absl::NotFoundError(absl::StrCat("there is no InferencePool ", name_));
  const std::string pods_path =
      absl::StrCat("/api/v1/namespaces/", namespace_, "/pods?labelSelector=",
                   absl::StrReplaceAll(pool->selector, {{"=", "%3D"}, {",", "%2C"}, {"/", "%2F"}}));
  std::map<std::string, std::string> pods;
  BFIO_ASSIGN_OR_RETURN(const std::string pods_version, List(client, pods_path, [&](const Json& object) {
                          BFIO_ASSIGN_OR_RETURN(Pod pod, ReadPod(object));
                          pods[pod.name] = pod.host;
                          return pods.size() <= kMostEngines ? absl::OkStatus()
                                                             : absl::OutOfRangeError(absl::StrCat(
                                                                   "more than ", kMostEngines, " pods"));
                        }));
  MutexLock lock(&mutex_);
  pool_ = *std::move(pool);
  pods_ = std::move(pods);
  status_ = absl::OkStatus();
  known_ = true;
  streams_ = {Stream{pool_path, pool_version}, Stream{pods_path, pods_version}};
  for (const Kind kind : {kPool, kPods}) Watch(client, kind);
  for (;;) {
    mutex_.Await(absl::Condition(this, &PodWatch::Woken));
    if (stopped_) return absl::OkStatus();
    for (const Kind kind : {kPool, kPods}) {
      const std::optional<absl::Status>& end = streams_[kind].end;
      if (!end) continue;
      BFIO_RETURN_IF_ERROR(*end);
      if (MonotonicNow() - streams_[kind].began_at < kShortestWatch)
        return absl::UnavailableError("a watch ended at once");
      Watch(client, kind);
    }
  }
}

bool PodWatch::Woken() const {
  return stopped_ || std::any_of(streams_.begin(), streams_.end(),
                                 [](const Stream& stream) { return stream.end.has_value(); });
}

absl::StatusOr<std::string> PodWatch::Get(HttpClient& client, const std::string& path) {
  struct Waiting {
    const bool* stopped;
    std::optional<absl::StatusOr<HttpClient::Answer>> answer;
    bool Over() const { return *stopped || answer.has_value(); }
  };
  const auto waiting = std::make_shared<Waiting>();
  MutexLock lock(&mutex_);
  waiting->stopped = &stopped_;
  client.Get(path, MonotonicNow() + kPatience, [this, waiting](absl::StatusOr<HttpClient::Answer> answer) {
    MutexLock lock(&mutex_);
    waiting->answer = std::move(answer);
  });
  mutex_.Await(absl::Condition(waiting.get(), &Waiting::Over));
  if (!waiting->answer) return absl::CancelledError("stopped");
  return BodyOf(*std::move(waiting->answer));
}

template <typename Take>
absl::StatusOr<std::string> PodWatch::List(HttpClient& client, const std::string& path, Take take) {
  std::string version, more;
  int pages = 0;
  do {
    if (++pages > kMostPages) return absl::OutOfRangeError("the list does not end");
    const std::string page = more.empty() ? "" : absl::StrCat("&continue=", more);
    BFIO_ASSIGN_OR_RETURN(const std::string text,
                          Get(client, absl::StrCat(path, "&limit=", kPageSize, page)));
    more.clear();
    BFIO_RETURN_IF_ERROR(ReadJson(
        text, "", kLimits,
        [](const JsonPath& at) {
          return at.Is({"items", ""}) || at.Is({"metadata", "resourceVersion"}) ||
                 at.Is({"metadata", "continue"});
        },
        [&](JsonPath& at, Json& value) -> absl::Status {
          if (at.names[0] == "items") return take(value);
          if (!value.is_string() || !IsToken(value.get<std::string>()))
            return absl::InvalidArgumentError("the list's metadata are none");
          (at.names[1] == "continue" ? more : version) = value.get<std::string>();
          return absl::OkStatus();
        }));
  } while (!more.empty());
  if (version.empty()) return absl::InvalidArgumentError("the list has no version");
  return version;
}

void PodWatch::Watch(HttpClient& client, Kind kind) {
  Stream& stream = streams_[kind];
  stream.rest.clear();
  stream.end.reset();
  stream.began_at = MonotonicNow();
  client.Follow(
      absl::StrCat(stream.path, "&watch=true&allowWatchBookmarks=true&timeoutSeconds=",
                   absl::ToInt64Seconds(kWatch), "&resourceVersion=", stream.version),
      stream.began_at + kWatch + kPatience,
      [this, kind](absl::string_view bytes) {
        MutexLock lock(&mutex_);
        std::optional<absl::Status>& end = streams_[kind].end;
        if (absl::Status status = TakeBytes(kind, bytes); !end && !status.ok()) end = std::move(status);
      },
      [this, kind](absl::StatusOr<HttpClient::Answer> answer) {
        MutexLock lock(&mutex_);
        if (std::optional<absl::Status>& end = streams_[kind].end; !end)
          end = BodyOf(std::move(answer)).status();
      });
}

absl::Status PodWatch::TakeBytes(Kind kind, absl::string_view bytes) {
  std::string& rest = streams_[kind].rest;
  for (;;) {
    const size_t end = bytes.find('\n');
    if (rest.size() + std::min(end, bytes.size()) > kMostEventBytes)
      return absl::OutOfRangeError(absl::StrCat("an event has more than ", kMostEventBytes, " bytes"));
    absl::StrAppend(&rest, bytes.substr(0, end));
    if (end == absl::string_view::npos) return absl::OkStatus();
    bytes.remove_prefix(end + 1);
    BFIO_RETURN_IF_ERROR(TakeEvent(kind, std::exchange(rest, {})));
  }
}

absl::Status PodWatch::TakeEvent(Kind kind, absl::string_view line) {
  BFIO_ASSIGN_OR_RETURN(const Json event, ReadJsonObject(line, "an event", {.bytes = kMostEventBytes}));
  const Json* const object = At(event, {"object"});
  const std::string type = TextAt(event, {"type"});
  if (object == nullptr) return absl::InvalidArgumentError("an event has no object");
  // With code 410 the version is too old to go on from.
  if (type == "ERROR")
    return absl::AbortedError(absl::StrCat("the watch ends: ", TextAt(*object, {"message"})));
  const std::string version = TextAt(*object, {"metadata", "resourceVersion"});
  if (!IsToken(version)) return absl::InvalidArgumentError("an event has no version");
  streams_[kind].version = version;
  pause_ = kShortestPause;
  if (type == "BOOKMARK") return absl::OkStatus();
  if (kind == kPool) {
    BFIO_ASSIGN_OR_RETURN(const Pool pool, ReadPool(*object));
    return type != "DELETED" && pool == pool_ ? absl::OkStatus() : absl::AbortedError("the pool has changed");
  }
  BFIO_ASSIGN_OR_RETURN(Pod pod, ReadPod(*object));
  if (type == "DELETED") {
    pods_.erase(pod.name);
  } else if (pods_.contains(pod.name) || pods_.size() < kMostEngines) {
    pods_[pod.name] = std::move(pod.host);
  }
  return absl::OkStatus();
}

ResolvePool WatchPools(ResolveHost resolve) {
  using Watches = std::map<std::string, std::unique_ptr<PodWatch>>;
  return [resolve = std::move(resolve), watches = std::make_shared<Watches>()](const EngineAddress& engine) {
    std::unique_ptr<PodWatch>& watch = (*watches)[engine.ToString()];
    if (watch == nullptr) watch = std::make_unique<PodWatch>(engine, resolve);
    return watch->Servers();
  };
}

}  // namespace bfio::router
