// Includes spdlog; every file that logs includes this instead of <spdlog/spdlog.h>. spdlog's log calls use a
// function template of fmt that libfmt already contains. Without the declaration below each file that logs
// would compile fmt's formatting of every type again, 7 of its 9 seconds.
#pragma once

#include <spdlog/spdlog.h>  // IWYU pragma: export

#ifndef FMT_HEADER_ONLY
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<buffer_context<char>>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
