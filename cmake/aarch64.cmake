# Build for 64-bit ARM on another machine, and run its programs under qemu:
#   cmake -S . -B build-neon -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
# Debian puts the libraries of another architecture beside its own (dpkg --add-architecture arm64),
# its loader among them. The cross compiler's own C library is of another build: a program that gets
# its loader from the one and its libc from the other hangs in pthread_create(). So no -L here.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
