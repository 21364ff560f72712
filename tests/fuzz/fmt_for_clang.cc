// Defines a template that libfmt instantiates for GCC only: clang mangles its name differently, and
// common/base/spdlog.h lets no file instantiate it.
#include <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                               basic_format_args<buffer_context<char>>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
