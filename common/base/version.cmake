# Writes OUT, the source of version.h. Runs in every build and changes OUT only with the commit, after which one file is compiled
# and the programs are linked. The variables VERSION, SOURCE and OUT are the caller's.
cmake_minimum_required(VERSION 3.23)
set(COMMIT "$Format:%H$")  # `git archive` puts the commit here
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} --no-optional-locks describe --always --abbrev=12 --exclude=* --dirty=.modified
                  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
string(REGEX MATCH "^[0-9a-f]+" HASH "${COMMIT}")
string(SUBSTRING "${HASH}" 0 12 HASH)
if(NOT HASH)
  set(HASH unknown)
elseif(COMMIT MATCHES "modified$")
  string(APPEND HASH .modified)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "#include \"common/base/version.h\"
const char* bfio::Version() { return \"@VERSION@+@HASH@\"; }
")
