#include "router/engine_link/engine_list.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/annotated.h"
#include "common/base/resolve.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "router/engine_link/engine_call.h"
#include "router/group/group_key.h"

namespace bfio::router {
namespace {

bool IsIpv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

// Far above the budget of any engine.
constexpr int64_t kMostTokenBudget = int64_t{1} << 24;

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxGroupNameBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

absl::StatusOr<std::string> ParseName(const std::string& text) {
  if (IsName(text)) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("must have 1 to ", kMaxGroupNameBytes, " letters, digits, '-', '_' or '.'"));
}

// Whether it computes prompts for others.
absl::StatusOr<bool> ParseRole(const std::string& text) {
  if (text == "prefill" || text == "decode") return text == "prefill";
  return absl::InvalidArgumentError("must be prefill or decode");
}

absl::StatusOr<bool> ParsePrefixes(const std::string& text) {
  if (text == "text" || text == "exact") return text == "exact";
  return absl::InvalidArgumentError("must be text or exact");
}

// FIRST-LAST or PORT.
absl::StatusOr<std::pair<uint32_t, uint32_t>> ParsePorts(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> range = absl::StrSplit(text, absl::MaxSplits('-', 1));
  uint32_t first = 0, last = 0;
  const bool good = absl::SimpleAtoi(range.first, &first) &&
                    absl::SimpleAtoi(absl::StrContains(text, '-') ? range.second : range.first, &last);
  if (good && first >= 1 && last >= first && last <= 65535) return std::pair(first, last);
  return absl::InvalidArgumentError("ports must be such as 8200-8207 or 8200,8202");
}

// The servers of PROTOCOL://HOST:PORT; with http one for each of its ports.
absl::StatusOr<std::vector<EngineAddress>> ParseUrl(const std::string& text) {
  if (absl::StrContains(text, '?')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "': settings of an engine must be keys of its entry in --config, not after '?'"));
  }
  const std::pair<absl::string_view, absl::string_view> split =
      absl::StrSplit(text, absl::MaxSplits("://", 1));
  EngineAddress engine;
  absl::string_view protocol = split.first, server = split.second;
  if (protocol == "k8s") {
    const std::pair<absl::string_view, absl::string_view> names =
        absl::StrSplit(server, absl::MaxSplits('/', 1));
    if (!IsName(names.first) || !IsName(names.second))
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' must be k8s://NAMESPACE/POOL"));
    engine.protocol = "http";
    engine.by_name = true;
    engine.pool = std::string(server);
    return std::vector<EngineAddress>{std::move(engine)};
  }
  engine.by_name = absl::ConsumeSuffix(&protocol, "+dns");
  const bool http = (protocol == "http" || protocol == "https") && !engine.by_name;
  if ((protocol != "vllm" && protocol != "sglang" && !http) || server.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' must be http://HOST:PORTS, https://HOST:PORTS, vllm://HOST:PORT, sglang://HOST:PORT, "
                     "vllm+dns://NAME:PORT, sglang+dns://NAME:PORT, k8s://NAMESPACE/POOL or file:PATH"));
  }
  engine.protocol = std::string(protocol);
  const size_t colon = server.rfind(':');
  if (!http || colon == absl::string_view::npos) {
    BFIO_ASSIGN_OR_RETURN(engine.server, ParseAddress(std::string(server)));
    return std::vector<EngineAddress>{std::move(engine)};
  }
  std::vector<EngineAddress> engines;
  for (const absl::string_view ports : absl::StrSplit(server.substr(colon + 1), ',')) {
    BFIO_ASSIGN_OR_RETURN(const auto range, Annotated(absl::StrCat("'", text, "'"), ParsePorts(ports)));
    for (uint32_t port = range.first; port <= range.second && engines.size() <= kMostEngines; ++port) {
      BFIO_ASSIGN_OR_RETURN(engine.server, ParseAddress(absl::StrCat(server.substr(0, colon + 1), port)));
      // Envoy gets addresses, not names.
      engine.by_name = !IsIpAddress(engine.server.host);
      engines.push_back(engine);
    }
  }
  return engines;
}

// Appends servers with the settings of their entry.
absl::Status Append(const std::vector<EngineAddress>& servers, const EngineAddress& settings,
                    std::vector<EngineAddress>& engines) {
  if (engines.size() + servers.size() > kMostEngines)
    return absl::InvalidArgumentError(absl::StrCat("lists more than ", kMostEngines, " engines"));
  for (const EngineAddress& server : servers) {
    EngineAddress engine = settings;
    engine.protocol = server.protocol;
    engine.server = server.server;
    engine.by_name = server.by_name;
    engine.pool = server.pool;
    if (const bool https = engine.protocol == "https"; https || engine.protocol == "http") {
      if (https != engine.tls.enabled())
        return absl::InvalidArgumentError(https ? "https:// needs tls in its entry of --config"
                                                : "tls needs https:// here");
      engine.protocol = "http";
    }
    const auto same = [&](const EngineAddress& other) {
      return other.server == engine.server && other.pool == engine.pool;
    };
    if (std::any_of(engines.begin(), engines.end(), same))
      return absl::InvalidArgumentError(absl::StrCat("'", engine.ToString(), "' is listed twice"));
    if (!engines.empty() && engines.front().protocol != engine.protocol)
      return absl::InvalidArgumentError(
          absl::StrCat("'", engine.ToString(),
                       "': all engines of a router must have the same protocol, http, vllm or sglang"));
    if (!engines.empty() && engines.front().barrier.empty() != engine.barrier.empty())
      return absl::InvalidArgumentError(
          absl::StrCat("'", engine.ToString(), "': either all engines of a router have a barrier, or none"));
    engines.push_back(std::move(engine));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EngineAddress>> ReadEntries(const NextEntry& next) {
  std::vector<EngineAddress> engines;
  while (true) {
    EngineAddress settings;
    std::vector<EngineAddress> servers;
    OptionTable keys;
    keys.AddParsed("url", &servers, "", "", ParseUrl);
    keys.AddParsed("barrier", &settings.barrier, "none", "", ParseName);
    keys.Add("token_budget", &settings.token_budget, Within(1, kMostTokenBudget), "");
    keys.Add("pinned", &settings.pinned, "");
    keys.Add("slots", &settings.slots, Within(1, kMostEngineSlots), "");
    keys.AddParsed("role", &settings.hands_over, "none", "", ParseRole);
    keys.AddParsed("kv_connector", &settings.kv_connector, "NixlConnector", "", ParseName);
    keys.Add("kv_events", &settings.kv_events, Within(1, 65535), "");
    keys.Add("kv_replay", &settings.kv_replay, Within(1, 65535), "");
    keys.Add("step_metrics", &settings.step_metrics, Within(1, 65535), "");
    keys.AddParsed("prefixes", &settings.exact_prefixes, "text", "", ParsePrefixes);
    keys.AddParsed("tls", &settings.tls, "", "", ParseTlsFiles);
    keys.Add("token_file", &settings.token_file, "");
    keys.AddParsed("kv_bootstrap", &settings.kv_bootstrap, "port 8998 of its host", "",
                   [](const std::string& text) { return ParseAddress(text); });
    keys.AddParsed("api_server", &settings.api_server, "kubernetes.default.svc:443", "",
                   [](const std::string& text) { return ParseAddress(text); });
    keys.Add("api_files", &settings.api_files, "");
    BFIO_ASSIGN_OR_RETURN(const bool there, next(keys));
    if (!there) return engines;
    if (servers.empty()) return absl::InvalidArgumentError("an engine has no url");
    const std::string& protocol = servers.front().protocol;
    if (keys.given("pinned") && protocol != "sglang")
      return absl::InvalidArgumentError("pinned is for sglang:// only");
    const bool http = absl::StartsWith(protocol, "http");
    if ((keys.given("api_server") || keys.given("api_files")) && servers.front().pool.empty())
      return absl::InvalidArgumentError("api_server and api_files are for k8s:// only");
    if (keys.given("slots") && !http)
      return absl::InvalidArgumentError("slots is for http:// only: other engines report them");
    if (keys.given("step_metrics") && !http)
      return absl::InvalidArgumentError("step_metrics is for http:// only");
    if (keys.given("kv_replay") && settings.kv_events == 0)
      return absl::InvalidArgumentError("kv_replay needs kv_events");
    // By HTTP, prompts have their true lengths without.
    if (settings.exact_prefixes && settings.kv_events == 0 && !http)
      return absl::InvalidArgumentError("prefixes: exact needs kv_events");
    if (settings.kv_events != 0 && !servers.front().by_name && !IsIpAddress(servers.front().server.host))
      return absl::InvalidArgumentError("kv_events needs an IP address in url, or +dns");
    if (keys.given("role") && !http)
      return absl::InvalidArgumentError("role is for http:// only: other engines report it");
    if (keys.given("kv_connector") && !keys.given("role"))
      return absl::InvalidArgumentError("kv_connector needs a role");
    if (keys.given("role") && settings.kv_connector.empty()) settings.kv_connector = "NixlConnector";
    if (settings.kv_connector == "MooncakeConnector")
      return absl::InvalidArgumentError("kv_connector MooncakeConnector is for vllm:// only");
    if (keys.given("kv_bootstrap") && http && settings.kv_connector != "sglang")
      return absl::InvalidArgumentError("kv_bootstrap needs kv_connector sglang here");
    if (!settings.token_file.empty() && !settings.tls.enabled())
      return absl::InvalidArgumentError("token_file needs tls: the token would not be encrypted");
    if (keys.given("token_budget") && settings.barrier.empty())
      return absl::InvalidArgumentError("token_budget needs a barrier");
    BFIO_RETURN_IF_ERROR(Append(servers, settings, engines));
  }
}

// The option, of which --engines and a file's text differ.
template <typename T, typename Parse>
void AddList(OptionTable& table, T* value, absl::string_view help, Parse parse) {
  table.AddParsed("engines", value, "", help, parse);
  table.Find("engines")->set_list = [value](const NextEntry& next) -> absl::Status {
    BFIO_ASSIGN_OR_RETURN(std::vector<EngineAddress> engines, ReadEntries(next));
    *value = T{std::move(engines)};
    return absl::OkStatus();
  };
}

absl::StatusOr<std::vector<EngineAddress>> ReadFile(const std::string& path) {
  std::vector<EngineAddress> engines;
  OptionTable table;
  AddList(table, &engines, "", ParseEngines);
  BFIO_RETURN_IF_ERROR(table.ReadConfigFile(path));
  if (engines.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " lists no engine"));
  return engines;
}

// "file:PATH", or what ParseEngines reads.
absl::StatusOr<EngineSource> ParseSource(const std::string& text) {
  EngineSource source;
  absl::string_view path = text;
  const bool of_file = absl::ConsumePrefix(&path, "file:");
  if (of_file) source.file = std::string(path);
  BFIO_ASSIGN_OR_RETURN(source.engines, of_file ? ReadFile(source.file) : ParseEngines(text));
  return source;
}

}  // namespace

bool EngineSource::watched() const {
  return !file.empty() ||
         std::any_of(engines.begin(), engines.end(), [](const auto& engine) { return engine.by_name; });
}

void AddEngines(OptionTable& table, EngineSource* source, absl::string_view help) {
  AddList(table, source, help, ParseSource);
}

absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host) {
  BFIO_ASSIGN_OR_RETURN(const AddressList found, bfio::Resolve(host, 0, AI_ADDRCONFIG));
  std::vector<std::string> addresses;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  return addresses;
}

void EngineList::ReadSourceFile() {
  absl::StatusOr<std::vector<EngineAddress>> engines = ReadFile(source_.file);
  if (engines.ok() && (engines->front().protocol != source_.engines.front().protocol ||
                       engines->front().barrier.empty() != source_.engines.front().barrier.empty())) {
    engines = absl::InvalidArgumentError(absl::StrCat(source_.file,
                                                      ": the protocol of the engines, and whether they have "
                                                      "barriers, cannot change while the router runs"));
  }
  const absl::Status status = engines.status();
  if (engines.ok()) source_.engines = *std::move(engines);
  LogOnce(source_.file, status, "the router keeps the engines that were listed before");
}

void EngineList::LogOnce(const std::string& of, const absl::Status& status, absl::string_view what_then) {
  const std::string error(status.message());
  if (std::exchange(errors_[of], error) != error && !error.empty())
    spdlog::warn("--engines: {}; {}", error, std::string(what_then));
}

std::vector<Address> EngineList::Resolve(const EngineAddress& engine) {
  const std::string name = engine.ToString();
  const bool is_pool = !engine.pool.empty();
  absl::StatusOr<std::vector<Address>> found = absl::NotFoundError("the name has no addresses");
  if (is_pool) {
    found = resolve_pool_(engine);
  } else if (auto hosts = resolve_(engine.server.host); !hosts.ok()) {
    found = hosts.status();
  } else if (!hosts->empty()) {
    found.emplace();
    for (std::string& host : *hosts) found->push_back({std::move(host), engine.server.port});
  }
  if (found.ok() && found->size() > kMostEngines)
    found = absl::OutOfRangeError(absl::StrCat("the name has more than ", kMostEngines, " addresses"));
  const std::string& shown = is_pool ? name : engine.server.host;
  const auto error = [&] { return absl::StrCat("cannot resolve ", shown, ": ", found.status().message()); };
  LogOnce(shown, found.ok() ? absl::OkStatus() : absl::UnavailableError(error()),
          "the router keeps its last addresses");
  std::vector<Known>& known = known_[name];
  if (found.ok()) {
    for (Known& one : known) ++one.missing;
    for (Address& server : *found) {
      const auto there =
          std::find_if(known.begin(), known.end(), [&](const Known& one) { return one.server == server; });
      if (there != known.end()) {
        there->missing = 0;
      } else {
        known.push_back({std::move(server)});
      }
    }
    // A pool's answer is complete.
    std::erase_if(known, [&](const Known& one) { return one.missing >= (is_pool ? 1 : kAnswersWithout); });
  }
  // A server with addresses of both families must appear only once.
  const bool only_ipv6 =
      std::all_of(known.begin(), known.end(), [](const Known& one) { return IsIpv6(one.server.host); });
  std::vector<Address> servers;
  for (const Known& one : known)
    if (is_pool || only_ipv6 || !IsIpv6(one.server.host)) servers.push_back(one.server);
  return servers;
}

std::vector<EngineAddress> EngineList::Resolve(const std::function<bool()>& stop) {
  if (!source_.file.empty()) ReadSourceFile();
  std::erase_if(known_, [this](const auto& name) {
    return std::none_of(source_.engines.begin(), source_.engines.end(), [&](const EngineAddress& given) {
      return given.by_name && given.ToString() == name.first;
    });
  });
  std::vector<EngineAddress> engines;
  absl::Status all;
  const auto add = [&](EngineAddress engine) {
    for (const EngineAddress& other : engines) {
      if (other.server == engine.server) return;
    }
    if (engines.size() < kMostEngines) return engines.push_back(std::move(engine));
    all = absl::OutOfRangeError("the names have too many addresses");
  };
  for (const EngineAddress& given : source_.engines) {
    if (stop()) break;
    if (!given.by_name) {
      add(given);
      continue;
    }
    for (const Address& server : Resolve(given)) {
      if (!all.ok()) break;
      EngineAddress engine = given;
      engine.by_name = false;
      engine.pool.clear();
      engine.name = given.server.host;
      engine.server = server;
      add(std::move(engine));
    }
  }
  LogOnce("", all, absl::StrCat("the router uses the first ", kMostEngines));
  return engines;
}

std::string EngineAddress::ToString() const {
  if (!pool.empty()) return absl::StrCat("k8s://", pool);
  const bool http = protocol == "http";
  return absl::StrCat(protocol, http && tls.enabled() ? "s" : "", by_name && !http ? "+dns" : "", "://",
                      server.ToString());
}

absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text) {
  std::vector<std::string> urls;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    // "8202" or "8204-8207" continues the ports of a server with http.
    if (absl::StrContains(part, "://") || urls.empty() || !absl::StartsWith(urls.back(), "http")) {
      urls.emplace_back(part);
    } else {
      absl::StrAppend(&urls.back(), ",", part);
    }
  }
  std::vector<EngineAddress> engines;
  for (const std::string& url : urls) {
    BFIO_ASSIGN_OR_RETURN(const std::vector<EngineAddress> servers, ParseUrl(url));
    BFIO_RETURN_IF_ERROR(Append(servers, {}, engines));
  }
  return engines;
}

}  // namespace bfio::router
