// The present engines: those of --engines, of a file, and behind DNS names.
//
// Purpose: the file is read and the names are resolved repeatedly. The file's present content replaces the
// earlier one. A new address of a name is used at once; an address is removed after kAnswersWithout
// consecutive answers without it. A file that cannot be read or is invalid, and a name that does not resolve,
// change nothing: an outage of either removes no engine. If a name has IPv4 addresses, its IPv6 addresses are
// not used, because they reach the same servers. Threads: one. Resolve blocks while the resolver does.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_LIST_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_LIST_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/engine_link/engine_address.h"

namespace bfio::router {

struct EngineSource {
  // As given in the flag or in the file.
  std::vector<EngineAddress> engines;
  // Empty: no file.
  std::string file;

  bool empty() const { return engines.empty(); }
  // The list may change.
  bool watched() const;
};

// "file:PATH", or what ParseEngines reads. The file has addresses as ParseEngines reads them, in lines; the
// rest of a line after '#' is a comment. INVALID_ARGUMENT, or NOT_FOUND when the file does not exist. The
// result has at least one engine, unless the text is empty.
absl::StatusOr<EngineSource> ReadEngineSource(const std::string& text);

// IP addresses of a host; IPv6 without brackets.
using ResolveHost = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;
absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host);

class EngineList {
 public:
  // How often the link calls Resolve.
  static constexpr absl::Duration kPeriod = absl::Seconds(2);
  // Number of consecutive answers without an address (10 s at that period) after which it is removed. Some
  // resolvers omit addresses at times, and a removed engine must drain before it can come back.
  static constexpr int kAnswersWithout = 5;

  EngineList(EngineSource source, ResolveHost resolve)
      : source_(std::move(source)), resolve_(std::move(resolve)) {}

  // The present engines: each server once, names replaced by addresses. A failure is logged once. A name that
  // resolves slowly delays those after it. If `stop` returns true between two names, the result is partial.
  std::vector<EngineAddress> Resolve(const std::function<bool()>& stop = [] { return false; });

 private:
  struct Known {
    // An IP address.
    std::string host;
    // Number of consecutive answers without it.
    int missing = 0;
  };

  void ReadSourceFile();
  // The addresses of `server`, which is a name.
  std::vector<std::string> Resolve(const Address& server);

  EngineSource source_;
  const ResolveHost resolve_;
  // By name and port.
  std::map<std::string, std::vector<Known>> known_;
  // By file and host.
  std::map<std::string, std::string> errors_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_LIST_H_
