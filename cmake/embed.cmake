# cmake -DINPUT=page.html -DOUTPUT=file.c -DNAME=symbol -P embed.cmake: a page as a C array, with the
# style sheet and the script that it links put inside it.
get_filename_component(folder ${INPUT} DIRECTORY)
file(READ ${INPUT} page)

function(put_inside element link_pattern)
  string(REGEX MATCH "${link_pattern}" link "${page}")
  file(READ "${folder}/${CMAKE_MATCH_1}" text)
  string(REPLACE "${link}" "<${element}>\n${text}</${element}>" page "${page}")
  set(page "${page}" PARENT_SCOPE)
endfunction()
put_inside(style "<link rel=\"stylesheet\" href=\"([^\"]+)\">")
put_inside(script "<script src=\"([^\"]+)\"></script>")

string(HEX "${page}" bytes)
string(LENGTH "${bytes}" digits)
math(EXPR count "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "/* Made from ${INPUT} by cmake/embed.cmake. */
#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_bytes;
const size_t ${NAME}_bytes = ${count};
const unsigned char ${NAME}[] = {
${bytes}
};
")
