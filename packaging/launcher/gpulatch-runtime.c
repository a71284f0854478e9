/*
 * gpulatch-runtime: the program that engines call instead of an OCI runtime.
 *
 * It execs `create`, `run` and `restore` to the Python pipeline and every other call straight to the low-level
 * runtime. An engine makes several calls per container and only one of them can concern a GPU, so the others must
 * cost no more than the runtime itself: no configuration is read and no environment variable is looked at. There is
 * no libc either: in a virtual machine an empty static glibc program that execs runc adds 13 % to `runc state` (its
 * start executes many CPUID instructions, which trap); this one adds 4 %.
 *
 * Everything is found from the place of this file:
 *
 *   <libdir>/bin/<runtime name>                     this program, one copy for each runtime name
 *   <libdir>/low-level/<runtime name>/<basename>    symlink to the low-level runtime; its name selects the grammar
 *   <libdir>/low-level/<runtime name>/off           when this file exists, every call goes to the low-level runtime
 *   <libdir>/runtime_wrapper/main.py                the pipeline
 *
 * Build, for x86-64 or arm64:
 *   cc -O2 -static -nostdlib -ffreestanding -fno-stack-protector -Wall -Wextra -Werror -o OUT \
 *      packaging/launcher/gpulatch-runtime.c
 */
#include <asm/errno.h>
#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/limits.h>
#include <linux/stat.h>
#include <linux/time_types.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __GNUC__
#ifndef __clang__
#pragma GCC optimize("no-tree-loop-distribute-patterns") /* makes calls of memcpy and strlen out of loops */
#endif
#endif

#ifndef PYTHON
#define PYTHON "/usr/bin/python3"
#endif

#define REINSTALL "make that link anew with packaging/build"
#define REPAIR "repair it, or switch the wrapper off with a file `off` in its low-level directory"

/* How an option is read: without a value, with one, with one only after `=`; STOP prints something and exits. */
enum kind { FLAG, VALUE, OPTIONAL, STOP };

/* `like`: an abbreviation that fits this option and that one is not ambiguous, it is read as that one (see below). */
struct option {
	const char *name;
	enum kind kind;
	const char *like;
};

/* Options before the subcommand, runc 1.0 to 1.5. */
static const struct option runc_options[] = {
	{"debug", FLAG, 0}, {"systemd-cgroup", FLAG, 0}, {"log", VALUE, 0}, {"log-format", VALUE, 0},
	{"root", VALUE, 0}, {"criu", VALUE, 0}, {"rootless", VALUE, 0},
	{"help", STOP, 0}, {"h", STOP, 0}, {"version", STOP, 0}, {"v", STOP, 0}, {0, FLAG, 0},
};

/*
 * Options before the command, crun 1.8 to 1.27, with the four that argp adds. Before crun 1.22 --rootless has the
 * key of --root, so getopt takes `--roo` for --root; --log-level is younger than 1.8.
 */
static const struct option crun_options[] = {
	{"debug", FLAG, 0}, {"systemd-cgroup", FLAG, 0}, {"cgroup-manager", VALUE, 0}, {"log", VALUE, 0},
	{"log-format", VALUE, 0}, {"log-level", VALUE, "log-format"}, {"root", VALUE, 0}, {"rootless", VALUE, "root"},
	{"program-name", VALUE, 0}, {"HANG", OPTIONAL, 0},
	{"version", STOP, 0}, {"help", STOP, 0}, {"usage", STOP, 0}, {0, FLAG, 0},
};

static const char *const wrapped[] = {"create", "run", "restore", 0};
static const char *const wrapped_for_crun[] = {"create", "run", "restore", "update", 0};

/* Every launcher of every build holds this text, and is smaller than that: so one launcher knows another. */
static const char pipeline[] = "/runtime_wrapper/main.py";
#define LARGEST_LAUNCHER (64 * 1024)

/* Long enough for a path as long as the kernel can name plus what is put behind it; the kernel refuses the rest. */
struct text {
	size_t end;
	char at[3 * PATH_MAX];
};

static struct text bin, libdir, directory, low_level, main_py;
static const char *runtime_name;
static bool is_crun, is_off;

/* What the command line says: the index of the subcommand (0: none) and where errors go. */
static int subcommand;
static const char *log_option;
static bool log_is_json;

/* ---- the kernel ---- */

/* A system call; a negative result is an errno. */
static long kernel(long number, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
		      x3 __asm__("x3") = d, x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
#else
#error "the launcher knows x86-64 and arm64"
#endif
}

static long sys_open(const char *path, int flags)
{
	return kernel(__NR_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0644, 0);
}

/* Replaces `text` by what the symlink says. */
static long sys_readlink(const char *path, struct text *text)
{
	long length = kernel(__NR_readlinkat, AT_FDCWD, (long)path, (long)text->at, PATH_MAX, 0);

	text->end = length < 0 ? 0 : length;
	text->at[text->end] = 0;
	return length;
}

static long sys_write(int fd, const struct text *text)
{
	return kernel(__NR_write, fd, (long)text->at, text->end, 0, 0);
}

/* ---- text ---- */

static size_t length_of(const char *text)
{
	size_t length = 0;

	while (text[length])
		length++;
	return length;
}

static bool begins_with(const char *text, const char *start, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (text[i] != start[i] || !text[i])
			return false;
	return true;
}

static bool equal(const char *a, const char *b)
{
	return begins_with(a, b, length_of(b)) && !a[length_of(b)];
}

static bool is_one_of(const char *word, const char *const *words)
{
	while (*words && !equal(word, *words))
		words++;
	return *words;
}

static void add(struct text *text, const char *more)
{
	while (*more && text->end < sizeof text->at - 1)
		text->at[text->end++] = *more++;
	text->at[text->end] = 0;
}

static void add_number(struct text *text, long number, int digits)
{
	char shown[24];
	int start = sizeof shown - 1;

	shown[start] = 0;
	for (; number || digits > 0; number /= 10, digits--)
		shown[--start] = '0' + number % 10;
	add(text, shown + start);
}

/* The place of the last slash; 0 if there is none. */
static size_t last_slash(const struct text *path)
{
	size_t i = path->end;

	while (i > 0 && path->at[i] != '/')
		i--;
	return i;
}

static void cut(struct text *text, size_t end)
{
	text->end = end;
	text->at[end] = 0;
}

/* ---- errors ---- */

/* A path as it may stand in a message: nothing outside ASCII or below a blank, and no blanks, which could form one of
   the phrases from which Docker derives an exit code. */
static void add_path(struct text *text, const char *path)
{
	for (; *path; path++) {
		char shown[] = {*path > ' ' && *path <= '~' ? *path : '?', 0};
		add(text, shown);
	}
}

/* The name of an errno and never its text, which may be one of those phrases too. */
static void add_errno(struct text *text, long number)
{
	static const struct {
		int number;
		const char *name;
	} names[] = {
		{EPERM, "EPERM"}, {ENOENT, "ENOENT"}, {EIO, "EIO"}, {E2BIG, "E2BIG"}, {ENOEXEC, "ENOEXEC"}, {ENOMEM, "ENOMEM"},
		{EACCES, "EACCES"}, {ENOTDIR, "ENOTDIR"}, {EISDIR, "EISDIR"}, {EINVAL, "EINVAL"}, {ENFILE, "ENFILE"},
		{EMFILE, "EMFILE"}, {ETXTBSY, "ETXTBSY"}, {ENAMETOOLONG, "ENAMETOOLONG"}, {ELOOP, "ELOOP"},
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].number == number)
			return add(text, names[i].name);
	add(text, "errno ");
	add_number(text, number, 1);
}

static bool is_leap(long year)
{
	return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* The time as RFC 3339, in UTC. */
static void add_now(struct text *text)
{
	static const int month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	struct __kernel_timespec now = {0, 0};
	long year = 1970, month = 0;

	kernel(__NR_clock_gettime, 0, (long)&now, 0, 0, 0);
	long days = now.tv_sec / 86400, seconds = now.tv_sec % 86400;
	for (; days >= 365 + is_leap(year); year++)
		days -= 365 + is_leap(year);
	for (; days >= month_days[month] + (month == 1 && is_leap(year)); month++)
		days -= month_days[month] + (month == 1 && is_leap(year));
	const long parts[] = {year, month + 1, days + 1, seconds / 3600, seconds / 60 % 60, seconds % 60};
	const char *const marks[] = {"-", "-", "T", ":", ":", "Z"};
	for (int i = 0; i < 6; i++) {
		add_number(text, parts[i], 2);
		add(text, marks[i]);
	}
}

/* Where crun's --log leads: `file:` may stand before the path, journald: and syslog: are no files, and a relative path
   is taken from the bundle, which is not known here. */
static const char *log_file(void)
{
	if (!log_option || !is_crun)
		return log_option;
	if (begins_with(log_option, "file:", 5))
		log_option += 5;
	return *log_option == '/' ? log_option : 0;
}

/* One record at the end of the --log file, which is where Docker and containerd look for the reason of a failure. */
static void append_record(const char *message)
{
	static struct text record;
	const char *path = log_file();

	if (!path)
		return;
	add(&record, log_is_json ? "{\"level\":\"error\",\"time\":\"" : "time=\"");
	add_now(&record);
	add(&record, log_is_json ? "\",\"msg\":\"" : "\" level=error msg=\"");
	for (; *message; message++) {
		char shown[] = {*message, 0};
		add(&record, *message == '"' || *message == '\\' ? "\\" : "");
		add(&record, shown);
	}
	add(&record, log_is_json ? "\"}\n" : "\"\n");
	/* Neither a planted symlink nor a FIFO that nobody reads may lead astray or hold up a root process. */
	long fd = sys_open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
	if (fd >= 0)
		sys_write(fd, &record);
}

/* One line: what, where, why (with an errno unless it is 0), what to do. */
static _Noreturn void fail(const char *what, const char *where, const char *why, long error, const char *hint)
{
	static struct text message;

	add(&message, "gpulatch: ");
	add(&message, what);
	add(&message, ", ");
	add_path(&message, where);
	add(&message, ": ");
	add(&message, why);
	if (error) {
		add(&message, " (");
		add_errno(&message, -error);
		add(&message, ")");
	}
	add(&message, "; ");
	add(&message, hint);
	add(&message, " (GL-6001)");
	append_record(message.at);
	add(&message, "\n");
	sys_write(2, &message);
	for (;;)
		kernel(__NR_exit_group, 1, 0, 0, 0, 0);
}

/* ---- the command line ---- */

static const struct option *named(const struct option *option, const char *name, size_t length)
{
	for (; option->name; option++)
		if (begins_with(option->name, name, length) && !option->name[length])
			return option;
	return 0;
}

/* The option of that name, else the only one that begins with it, as getopt_long does. */
static const struct option *abbreviated(const struct option *options, const char *name, size_t length)
{
	const struct option *found = named(options, name, length);

	if (found)
		return found;
	for (; options->name; options++) {
		if (!begins_with(options->name, name, length))
			continue;
		if (!found)
			found = options;
		else if (!options->like || !equal(options->like, found->name))
			return 0;
	}
	return found;
}

static void remember(const struct option *option, const char *value)
{
	if (equal(option->name, "log"))
		log_option = value;
	else if (equal(option->name, "log-format"))
		log_is_json = equal(value, "json");
}

/* The value in `--name=value`, or 0; tells how long the name is. */
static const char *value_in(const char *name, size_t *length)
{
	for (*length = 0; name[*length]; ++*length)
		if (name[*length] == '=')
			return name + *length + 1;
	return 0;
}

/* Go's strconv.ParseBool, and the empty value that runc 1.5 takes for true; -1 when it is neither. */
static int truth_of(const char *value)
{
	static const char *const yes[] = {"", "1", "t", "T", "true", "TRUE", "True", 0};
	static const char *const no[] = {"0", "f", "F", "false", "FALSE", "False", 0};

	return is_one_of(value, yes) ? 1 : is_one_of(value, no) ? 0 : -1;
}

/* The index of the subcommand, 0 for none or for a line that runc refuses. Go's flag package: `-x` is `--x`. */
static int scan_runc(char **argv)
{
	bool stops = false;
	size_t length;

	for (int i = 1; argv[i]; i++) {
		if (argv[i][0] != '-' || !argv[i][1])
			return stops ? 0 : i;
		const char *name = argv[i] + (argv[i][1] == '-' ? 2 : 1);
		if (!*name)
			return !stops && argv[i + 1] ? i + 1 : 0;
		const char *value = value_in(name, &length);
		const struct option *option = named(runc_options, name, length);
		if (!option)
			return 0;
		if (option->kind == VALUE) {
			if (!value && !(value = argv[++i]))
				return 0;
			remember(option, value);
			continue;
		}
		int truth = truth_of(value ? value : "true");
		if (truth < 0)
			return 0;
		if (option->kind == STOP)
			stops = truth;
	}
	return 0;
}

/* The same for crun: GNU argp in order. Its short options before the command all print something and exit. */
static int scan_crun(char **argv)
{
	size_t length;

	for (int i = 1; argv[i]; i++) {
		if (argv[i][0] != '-' || !argv[i][1])
			return i;
		if (argv[i][1] != '-')
			return 0;
		if (!argv[i][2])
			return argv[i + 1] ? i + 1 : 0;
		const char *value = value_in(argv[i] + 2, &length);
		const struct option *option = abbreviated(crun_options, argv[i] + 2, length);
		if (!option || option->kind == STOP || (option->kind == FLAG && value))
			return 0;
		if (option->kind == VALUE) {
			if (!value && !(value = argv[++i]))
				return 0;
			remember(option, value);
		}
	}
	return 0;
}

/* ---- the files around this program ---- */

static void find_myself(void)
{
	static const char replaced[] = " (deleted)"; /* a package upgrade came between the kernel's exec and this look */
	size_t mark = sizeof replaced - 1;
	long error = sys_readlink("/proc/self/exe", &bin);

	if (error < 0)
		fail("launcher", "/proc/self/exe", "cannot be read", error, "mount /proc");
	if (bin.end > mark && equal(bin.at + bin.end - mark, replaced))
		cut(&bin, bin.end - mark);
	size_t slash = last_slash(&bin);
	runtime_name = bin.at + slash + 1;
	cut(&bin, slash);
	add(&libdir, bin.at);
	cut(&libdir, last_slash(&libdir));
	add(&directory, libdir.at);
	add(&directory, "/low-level/");
	add(&directory, runtime_name);
}

/* What stands in the low-level directory under one name. Names with a leading dot are an installer's work in
   progress, other files than symlinks are none of ours. Returns whether it is a low-level runtime. */
static bool take_entry(const char *name)
{
	char byte;
	size_t end = directory.end;

	if (equal(name, "off")) {
		is_off = true;
		return false;
	}
	if (*name == '.')
		return false;
	add(&directory, "/");
	add(&directory, name);
	bool is_link = kernel(__NR_readlinkat, AT_FDCWD, (long)directory.at, (long)&byte, 1, 0) >= 0;
	if (is_link) {
		cut(&low_level, 0);
		add(&low_level, directory.at);
		is_crun = begins_with(name, "crun", 4) || equal(name, "krun");
	}
	cut(&directory, end);
	return is_link;
}

/* Looks for the link and the switch; returns the number of links, or an error. */
static long find_low_level(void)
{
	struct entry { /* linux_dirent64 of getdents64(2) */
		unsigned long inode, offset;
		unsigned short size;
		unsigned char type;
		char name[];
	};
	static _Alignas(struct entry) char entries[4096];
	long links = 0, size, fd = sys_open(directory.at, O_RDONLY | O_DIRECTORY);

	is_off = false;
	if (fd < 0)
		return fd;
	while ((size = kernel(__NR_getdents64, fd, (long)entries, sizeof entries, 0, 0)) > 0)
		for (long at = 0; at < size; at += ((struct entry *)(entries + at))->size)
			links += take_entry(((struct entry *)(entries + at))->name);
	kernel(__NR_close, fd, 0, 0, 0, 0);
	return size < 0 ? size : links;
}

static bool same_file(const struct statx *a, const struct statx *b)
{
	return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major && a->stx_dev_minor == b->stx_dev_minor;
}

/* Whether a file is a launcher, of another build and directory too. Only a file as small as one is read, which no
   runtime is: runc and crun cost nothing here. */
static bool is_launcher(const char *path, const struct statx *found)
{
	static char content[LARGEST_LAUNCHER];
	long fd, size = 0;

	if ((found->stx_mode & S_IFMT) != S_IFREG || found->stx_size > sizeof content)
		return false;
	if ((fd = sys_open(path, O_RDONLY)) < 0)
		return false;
	size = kernel(__NR_read, fd, (long)content, sizeof content, 0, 0);
	kernel(__NR_close, fd, 0, 0, 0, 0);
	if (size < 4 || !begins_with(content, "\177ELF", 4))
		return false;
	for (long at = 0; at + (long)sizeof pipeline <= size; at++)
		if (equal(content + at, pipeline))
			return true;
	return false;
}

/* A launcher as target of a launcher would exec itself for ever, or book every GPU twice. What is wrong, or null. */
static const char *launcher_as_target(long fd)
{
	static struct text path;
	struct statx here, there;

	if (kernel(__NR_statx, AT_FDCWD, (long)"/proc/self/exe", 0, STATX_INO, (long)&here) ||
	    kernel(__NR_statx, fd, (long)"", AT_EMPTY_PATH, STATX_INO | STATX_TYPE | STATX_SIZE, (long)&there))
		return 0;
	if (same_file(&here, &there))
		return "leads back to the launcher";
	cut(&path, 0);
	add(&path, "/proc/self/fd/");
	add_number(&path, fd, 1);
	return is_launcher(path.at, &there) ? "leads to another launcher" : 0;
}

/* Looks for the low-level runtime; null when there is one, else why not, with its errno or 0, and where. */
static const char *look(long *error, const char **where)
{
	long links = find_low_level();

	*where = directory.at;
	*error = links < 0 ? links : 0;
	if (links != 1)
		return links < 0 ? "cannot be read" : links ? "has several links" : "has no link in it";
	long fd = sys_open(low_level.at, O_PATH); /* closed by exec */
	*where = low_level.at;
	*error = fd < 0 ? fd : 0;
	return fd < 0 ? "cannot be followed" : launcher_as_target(fd);
}

/* ---- the two ways on ---- */

static _Noreturn void exec_pipeline(int argc, char **argv, char **envp)
{
	char *words[argc + 6]; /* the kernel lets argv take at most a quarter of the stack */
	int count = 0;

	add(&main_py, libdir.at);
	add(&main_py, pipeline);
	long error = kernel(__NR_faccessat, AT_FDCWD, (long)main_py.at, 4, 0, 0);
	if (error)
		fail("wrapper", main_py.at, "cannot be read", error, REPAIR);
	words[count++] = PYTHON;
	words[count++] = "-IS";
	words[count++] = "-B";
	words[count++] = main_py.at;
	words[count++] = (char *)runtime_name;
	words[count++] = low_level.at;
	for (int i = 1; i <= argc; i++) /* with the null pointer at the end */
		words[count++] = argv[i];
	error = kernel(__NR_execve, (long)PYTHON, (long)words, (long)envp, 0, 0);
	fail("wrapper", PYTHON, "cannot be executed", error, REPAIR);
}

/* Returns an error, or not at all. */
static long exec_low_level(char **argv, char **envp)
{
	argv[0] = low_level.at; /* crun takes its handler from the basename of argv[0] */
	return kernel(__NR_execve, (long)low_level.at, (long)argv, (long)envp, 0, 0);
}

static _Noreturn void launch(int argc, char **argv, char **envp)
{
	static char *no_words[] = {"", 0};

	if (argc < 1) { /* kernels before 5.18 allow it */
		argc = 1;
		argv = no_words;
	}
	find_myself();
	const char *why = 0, *where = 0;
	long error = 0;
	/* packaging/build may put another link in the place of the one that was just found: then look again. */
	for (int looks = 0; looks < 3; looks++) {
		why = look(&error, &where);
		subcommand = is_crun ? scan_crun(argv) : scan_runc(argv);
		if (why)
			continue;
		if (subcommand && !is_off && is_one_of(argv[subcommand], is_crun ? wrapped_for_crun : wrapped))
			exec_pipeline(argc, argv, envp);
		error = exec_low_level(argv, envp);
		why = "cannot be executed";
	}
	fail("low-level runtime", where, why, error, REINSTALL);
}

#if __STDC_HOSTED__
/* Built without the flags above it does the same, only slower: for analysers and sanitizers. */
int main(int argc, char **argv, char **envp)
{
	launch(argc, argv, envp);
}
#else
/* The kernel puts argc, the arguments, a null pointer and the environment on the stack. */
__attribute__((used)) static _Noreturn void start(long *stack)
{
	launch(stack[0], (char **)(stack + 1), (char **)(stack + 1) + stack[0] + 1);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tbl start\n");
#endif
#endif
