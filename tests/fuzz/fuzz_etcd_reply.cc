// Replies of etcd, or of another server in its place, to an election: parsed, or refused.

#include "router/election/etcd.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using bfio::fuzz::Check;
  using namespace bfio::router;
  const auto text = bfio::fuzz::Text(data, size);
  Check(!EtcdErrorIn(text, 500).ok(), "an error is one");
  if (const auto renewed = RenewedIn(text, 7); !renewed.ok())
    Check(!absl::IsNotFound(renewed.status()), "a lease that is gone is no error");
  if (const auto lease = LeaseIn(text, 4); lease.ok()) Check(*lease != 0, "a lease has an id");
  if (const auto owner = OwnerIn(text); owner.ok())
    Check(owner->name.empty() == (owner->revision == 0), "an owner has a name and a revision");
  if (const auto claim = ClaimIn(text, "mine"); claim.ok()) {
    Check(claim->owner.revision > 0, "whoever has the key has a revision");
    Check(claim->mine ? claim->owner.name == "mine" : !claim->owner.name.empty(), "and a name");
  }
  return 0;
}
