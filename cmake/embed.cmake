# cmake -DINPUT=file -DOUTPUT=file.c -DNAME=symbol -P embed.cmake: a file as a C array.
file(READ ${INPUT} bytes HEX)
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
