// Invalid command lines of bfio_chain_sim end with one clear line and exit code 2.
#include <gtest/gtest.h>

#include "tests/testing/bad_input.h"

namespace bfio::testing {
namespace {

TEST(ChainSimBadInput, Arguments) {
  ExpectOneLine("bfio_chain_sim", {}, 2,
                "one argument is required: placement, chains, serve, tuning or slices");
  ExpectOneLine("bfio_chain_sim", {"guess"}, 2, "unexpected argument 'guess'");
  ExpectOneLine("bfio_chain_sim", {"serve", "--rtt=/nonexistent"}, 2, "--rtt=/nonexistent: cannot be read");
  ExpectOneLine("bfio_chain_sim", {"serve", "--servers=400"}, 2, "it needs more than --servers=400");
  ExpectOneLine("bfio_chain_sim", {"slices", "--system=best"}, 2, "choose one of petals");
}

}  // namespace
}  // namespace bfio::testing
