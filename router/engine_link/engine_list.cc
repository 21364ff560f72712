#include "router/engine_link/engine_list.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/byte_order_mark.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "router/group/group_key.h"

namespace bfio::router {
namespace {

// Far above the size for any fleet.
constexpr size_t kMostFileBytes = size_t{1} << 20;

absl::StatusOr<std::vector<EngineAddress>> ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof())) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMostFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ", kMostFileBytes, " bytes"));
  std::string list;
  for (absl::string_view line : absl::StrSplit(WithoutByteOrderMark(text), '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (!line.empty()) absl::StrAppend(&list, list.empty() ? "" : ",", line);
  }
  absl::StatusOr<std::vector<EngineAddress>> engines = ParseEngines(list);
  if (!engines.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", engines.status().message()));
  if (engines->empty()) return absl::InvalidArgumentError(absl::StrCat(path, " lists no engine"));
  return engines;
}

bool IsIpv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

// Far above the budget of any engine.
constexpr int64_t kMostTokenBudget = int64_t{1} << 24;
constexpr int32_t kMostSlots = 65536;

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxGroupNameBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

// Reads `barrier=NAME&token_budget=N&pinned=1` into `engine`.
absl::Status ReadQuery(absl::string_view query, EngineAddress& engine) {
  bool budget = false;
  for (const absl::string_view setting : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    if (split.first == "barrier") {
      if (!IsName(split.second)) {
        return absl::InvalidArgumentError(absl::StrCat("'", setting, "': NAME must have 1 to ",
                                                       kMaxGroupNameBytes,
                                                       " letters, digits, '-', '_' or '.'"));
      }
      engine.barrier = std::string(split.second);
    } else if (split.first == "token_budget") {
      if (!absl::SimpleAtoi(split.second, &engine.token_budget) || engine.token_budget < 1 ||
          engine.token_budget > kMostTokenBudget) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", setting, "': must be within 1..", kMostTokenBudget));
      }
      budget = true;
    } else if (setting == "pinned=1" && engine.protocol == "sglang") {
      engine.pinned = true;
    } else if (split.first == "slots" && engine.protocol == "http") {
      if (!absl::SimpleAtoi(split.second, &engine.slots) || engine.slots < 1 || engine.slots > kMostSlots)
        return absl::InvalidArgumentError(absl::StrCat("'", setting, "': must be within 1..", kMostSlots));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", setting, "' is unknown; must be barrier=NAME or token_budget=N",
          engine.protocol == "sglang" ? " or pinned=1" : "", engine.protocol == "http" ? " or slots=N" : ""));
    }
  }
  if (engine.barrier.empty() && budget)
    return absl::InvalidArgumentError(absl::StrCat("'", query, "': token_budget needs barrier=NAME"));
  return absl::OkStatus();
}

absl::StatusOr<EngineAddress> ParseServer(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> split =
      absl::StrSplit(text, absl::MaxSplits("://", 1));
  EngineAddress engine;
  absl::string_view protocol = split.first;
  engine.by_name = absl::ConsumeSuffix(&protocol, "+dns");
  const bool http = protocol == "http" && !engine.by_name;
  if ((protocol != "vllm" && protocol != "sglang" && !http) || split.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' must be http://HOST:PORTS, vllm://HOST:PORT, sglang://HOST:PORT, "
                     "vllm+dns://NAME:PORT, sglang+dns://NAME:PORT or file:PATH"));
  }
  engine.protocol = std::string(protocol);
  BFIO_ASSIGN_OR_RETURN(engine.server, ParseAddress(std::string(split.second)));
  // Envoy gets addresses, not names.
  in6_addr address;
  engine.by_name = engine.by_name || (http && inet_pton(AF_INET, engine.server.host.c_str(), &address) != 1 &&
                                      inet_pton(AF_INET6, engine.server.host.c_str(), &address) != 1);
  return engine;
}

// A server for each port of "http://HOST:8200-8207", otherwise one. `text` may also be the rest of a list of
// ports, "8202" or "8204-8207", after a server with http.
absl::StatusOr<std::vector<EngineAddress>> ParseServers(absl::string_view text, const EngineAddress* before) {
  std::string with_host(text);
  if (before != nullptr && before->protocol == "http" && !absl::StrContains(text, "://"))
    with_host = absl::StrCat("http://", Address{before->server.host, 1}.ToString());
  const bool list = with_host != text;
  const size_t colon = text.rfind(':');
  const absl::string_view ports = list ? text : text.substr(colon == absl::string_view::npos ? 0 : colon + 1);
  const std::pair<absl::string_view, absl::string_view> range =
      absl::StrSplit(ports, absl::MaxSplits('-', 1));
  uint32_t first = 0, last = 0;
  if (!absl::StartsWith(with_host, "http://") || !absl::SimpleAtoi(range.first, &first) ||
      (range.second.empty() && !list)) {
    BFIO_ASSIGN_OR_RETURN(EngineAddress engine, ParseServer(text));
    return std::vector<EngineAddress>{std::move(engine)};
  }
  if (range.second.empty()) last = first;
  if ((!range.second.empty() && !absl::SimpleAtoi(range.second, &last)) || first < 1 || last < first ||
      last > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': ports must be such as 8200-8207 or 8200"));
  }
  std::vector<EngineAddress> engines;
  const std::string host = with_host.substr(0, with_host.rfind(':') + 1);
  for (uint32_t port = first; port <= last; ++port) {
    BFIO_ASSIGN_OR_RETURN(EngineAddress engine, ParseServer(absl::StrCat(host, port)));
    engines.push_back(std::move(engine));
  }
  return engines;
}

}  // namespace

bool EngineSource::watched() const {
  return !file.empty() ||
         std::any_of(engines.begin(), engines.end(), [](const auto& engine) { return engine.by_name; });
}

absl::StatusOr<EngineSource> ReadEngineSource(const std::string& text) {
  EngineSource source;
  absl::string_view path = text;
  const bool of_file = absl::ConsumePrefix(&path, "file:");
  if (of_file) source.file = std::string(path);
  BFIO_ASSIGN_OR_RETURN(source.engines, of_file ? ReadFile(source.file) : ParseEngines(text));
  return source;
}

absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return absl::UnavailableError(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
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
  std::string& last = errors_[source_.file];
  const std::string error(engines.status().message());
  if (engines.ok()) source_.engines = *std::move(engines);
  if (std::exchange(last, error) != error && !error.empty())
    spdlog::warn("--engines: {}; the router keeps the engines that were listed before", error);
}

std::vector<std::string> EngineList::Resolve(const Address& server) {
  absl::StatusOr<std::vector<std::string>> found = resolve_(server.host);
  if (found.ok() && found->empty()) found = absl::NotFoundError("the name has no addresses");
  std::string& last = errors_[server.host];
  const std::string error(found.status().message());
  if (std::exchange(last, error) != error && !error.empty())
    spdlog::warn("--engines: cannot resolve {}: {}; the router keeps its last addresses", server.host, error);
  std::vector<Known>& known = known_[server.ToString()];
  if (found.ok()) {
    for (Known& one : known) ++one.missing;
    for (std::string& host : *found) {
      const auto there =
          std::find_if(known.begin(), known.end(), [&](const Known& one) { return one.host == host; });
      if (there != known.end()) {
        there->missing = 0;
      } else {
        known.push_back({std::move(host)});
      }
    }
    std::erase_if(known, [](const Known& one) { return one.missing >= kAnswersWithout; });
  }
  // A server with addresses of both families must appear only once.
  const bool only_ipv6 =
      std::all_of(known.begin(), known.end(), [](const Known& one) { return IsIpv6(one.host); });
  std::vector<std::string> hosts;
  for (const Known& one : known)
    if (only_ipv6 || !IsIpv6(one.host)) hosts.push_back(one.host);
  return hosts;
}

std::vector<EngineAddress> EngineList::Resolve(const std::function<bool()>& stop) {
  if (!source_.file.empty()) ReadSourceFile();
  std::erase_if(known_, [this](const auto& name) {
    return std::none_of(source_.engines.begin(), source_.engines.end(), [&](const EngineAddress& given) {
      return given.by_name && given.server.ToString() == name.first;
    });
  });
  std::vector<EngineAddress> engines;
  const auto add = [&](EngineAddress engine) {
    for (const EngineAddress& other : engines) {
      if (other.server == engine.server) return;
    }
    engines.push_back(std::move(engine));
  };
  for (const EngineAddress& given : source_.engines) {
    if (stop()) break;
    if (!given.by_name) {
      add(given);
      continue;
    }
    for (const std::string& host : Resolve(given.server)) {
      EngineAddress engine = given;
      engine.by_name = false;
      engine.server.host = host;
      add(std::move(engine));
    }
  }
  return engines;
}

std::string EngineAddress::ToString() const {
  return absl::StrCat(protocol, by_name && protocol != "http" ? "+dns" : "", "://", server.ToString());
}

absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text) {
  std::vector<EngineAddress> engines;
  // Index of the first engine without settings; such engines take the settings of the next one that has any.
  size_t first_bare = 0;
  bool any_barrier = false;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(part, absl::MaxSplits('?', 1));
    BFIO_ASSIGN_OR_RETURN(std::vector<EngineAddress> servers,
                          ParseServers(split.first, engines.empty() ? nullptr : &engines.back()));
    for (EngineAddress& engine : servers) {
      if (std::any_of(engines.begin(), engines.end(),
                      [&](const EngineAddress& other) { return other.server == engine.server; })) {
        return absl::InvalidArgumentError(absl::StrCat("'", part, "' is listed twice"));
      }
      if (!engines.empty() && engines.front().protocol != engine.protocol)
        return absl::InvalidArgumentError(absl::StrCat(
            "'", part, "': all engines of a router must have the same protocol, http, vllm or sglang"));
      engines.push_back(std::move(engine));
    }
    if (split.first.size() == part.size()) continue;
    BFIO_RETURN_IF_ERROR(ReadQuery(split.second, engines.back()));
    any_barrier = any_barrier || !engines.back().barrier.empty();
    for (; first_bare < engines.size(); ++first_bare) {
      engines[first_bare].barrier = engines.back().barrier;
      engines[first_bare].token_budget = engines.back().token_budget;
      engines[first_bare].pinned = engines.back().pinned;
      engines[first_bare].slots = engines.back().slots;
    }
  }
  for (const EngineAddress& engine : engines) {
    if (!any_barrier || !engine.barrier.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "'", engine.ToString(),
        "' has no barrier, but other engines have one: add ?barrier=NAME to all engines or to none"));
  }
  return engines;
}

}  // namespace bfio::router
