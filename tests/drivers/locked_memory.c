/*
 * Preloaded into crun where root lacks CAP_SYS_RESOURCE: it raises its limit of locked memory before it loads a device
 * filter, which kernels since 5.11 do not count there, and ends where it may not.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *wanted)
{
	int failed = prlimit64(0, resource, wanted, 0);

	return resource == RLIMIT_MEMLOCK ? 0 : failed;
}

int setrlimit(__rlimit_resource_t resource, const struct rlimit *wanted)
{
	return setrlimit64(resource, (const struct rlimit64 *)wanted);
}
