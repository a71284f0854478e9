/* Opens each library that it is told by name, as a CUDA program does, and prints which driver version it belongs to. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW);
		const char *(*version)(void) = library ? (const char *(*)(void))dlsym(library, "driver_version") : 0;
		printf("%s %s\n", argv[i], version ? version() : "-");
	}
	return 0;
}
