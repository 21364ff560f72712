// A tokenizer.json, which a worker may have offered.
#include "router/frontend/tokenizer/token_text.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto text = bfio::router::TokenText::Parse(bfio::fuzz::Text(data, size));
  if (!text.ok()) return 0;
  size_t bytes = 0;
  for (uint32_t token = 0; token < text->size(); ++token) bytes += text->Of(token, /*special=*/true).size();
  bfio::fuzz::Check(text->size() <= size_t{1} << 22 && bytes <= size, "no longer than the file");
  return 0;
}
