"""Number theory of the example set, by trying every integer in range; see example_algebra for the form."""

from itertools import product
from math import gcd, isqrt, lcm

from tests.example_formulas import Facts, equation, value


def ninety_one() -> Facts:
    def good(modulus: int, stop: int, start: int = 1) -> list[int]:
        return [n for n in range(start, stop) if (n * n + n + 1) % modulus == 0]

    full, rest = divmod(2025, 91)
    return len(good(91, 2026)), {
        "1": [good(7, 8) == [2, 4], "$7$ divides $n^2+n+1$ exactly when $n\\equiv 2$ or $4 \\pmod 7$"],
        "2": [good(13, 14) == [3, 9], "$13$ divides $n^2+n+1$ exactly when $n\\equiv 3$ or $9 \\pmod{13}$"],
        "3": ["$91$ divides $n^2+n+1$", r"\pmod{91}$", *good(91, 92)],
        "4": [f"2025={full}\\cdot 91+{rest}", f"${full}$ full periods of length $91$, ending at ${full * 91}$"],
        "5": [len(good(91, full * 91 + 1)), f"1,\\dots,{full * 91}"],
        "6": [len(good(91, 2026, 2003)) == 2, *good(91, 2026, 2003), r"2003,\dots,2025"],
    }


def lcm_square_gcd() -> Facts:
    target = 10800
    divisors = [d for d in range(1, target + 1) if target % d == 0]

    def exponents(top: int) -> int:
        return sum(max(i, j) == top and min(i, j) % 2 == 0 for i, j in product(range(top + 1), repeat=2))

    pairs = sum(lcm(a, b) == target and isqrt(gcd(a, b)) ** 2 == gcd(a, b) for a, b in product(divisors, repeat=2))
    return pairs, {
        "1": [equation(r"10800=2^4\cdot 3^3\cdot 5^2")],
        "2": [pairs == exponents(4) * exponents(3) * exponents(2), target],
        "3": [f"prime $2$ there are ${exponents(4)}$ pairs $(i,j)$ of exponents with maximum $4$"],
        "4": [f"prime $3$ there are ${exponents(3)}$ pairs $(i,j)$ of exponents with maximum $3$"],
        "5": [f"prime $5$ there are ${exponents(2)}$ pairs $(i,j)$ of exponents with maximum $2$"],
    }


def reversal_by_396() -> Facts:
    numbers = [n for n in range(100, 1000) if n % 9 == 0 and n - int(str(n)[::-1]) == 396]
    digits = [(n // 100, n // 10 % 10, n % 10) for n in range(100, 1000)]
    rule = [100 * a + 10 * b + c for a, b, c in digits if a == c + 4 and c <= 5 and (2 * c + 4 + b) % 9 == 0]
    named = [{"a": n // 100, "c": n % 10} for n in numbers]
    low, high = [n for n in numbers if n % 10 <= 2], [n for n in numbers if n % 10 >= 3]
    return sum(numbers), {
        "1": ["$99(a-c)$", all(n - int(str(n)[::-1]) == 99 * (n // 100 - n % 10) for n in range(100, 1000))],
        "2": [equation("a=c+4", *named), {n % 10 for n in numbers} == set(range(6)), r"0\le c\le 5"],
        "3": [
            "by $9$ exactly when $9$ divides $a+b+c$",
            all((n % 9 == 0) == (sum(map(int, str(n))) % 9 == 0) for n in range(100, 1000)),
        ],
        "4": [rule == numbers, r"$a=c+4$, $0\le c\le 5$ and $9$ divides $2c+4+b$"],
        "5": ["at most $2$", *low, sum(low), len(low) == 3],
        "6": ["at least $3$", *high, sum(high), len(high) == 3],
    }


def shifted_factors() -> Facts:
    pairs = [(x, y) for x in range(1, 200) for y in range(1, 200) if x * y + 5 * x + 7 * y == 1000]
    divisors = [d for d in range(1, 1036) if 1035 % d == 0]
    return sum(x for x, _ in pairs), {
        "1": [equation("(x+7)(y+5)=1035", *({"x": x, "y": y} for x, y in pairs))],
        "2": ["$x+7$ is one", ",".join(map(str, divisors)), equation(r"1035=3^2\cdot 5\cdot 23")],
        "3": [f"{1 + 7}\\le x+7\\le {1035 // 6}"],
        "4": ["values of $x+7$", ",".join(str(x + 7) for x, _ in pairs)],
        "5": [",".join(str(x) for x, _ in pairs)],
    }


def self_powers_mod_five() -> Facts:
    good = [n for n in range(1, 771) if pow(n, n, 5) == 1]
    classes = sorted({n % 20 for n in good})
    later = [n for n in good if n > 760]
    condition = r"$n^n\equiv 1 \pmod 5$"

    def among(*residues: int) -> list[object]:
        found = [str(r) for r in classes if r % 5 in residues]
        listed = f"${','.join(found)}$" if len(found) > 2 else " and ".join(f"${r}$" for r in found)
        return [f"{condition} holds exactly for the residues {listed} modulo $20$"]

    return len(good), {
        "1": [all(pow(n, n, 5) == pow(n + 20, n + 20, 5) for n in range(1, 400)), "modulo $5$", "modulo $20$"],
        "2": [r"Among $n\equiv 1 \pmod 5$", *among(1)],
        "3": [r"Among $n\equiv 2$ or $3 \pmod 5$", *among(2, 3)],
        "4": [r"Among $n\equiv 4 \pmod 5$", *among(4)],
        "5": [condition, "modulo $20$", ",".join(map(str, classes)), len(classes) == 8],
        "6": [condition, len(good) - len(later), "from $1$ to $760$"],
        "7": [condition, f"n={','.join(map(str, later))}", "From $761$ to $770$"],
    }


def positive_quotients() -> Facts:
    """Beyond the range searched, n + 2 exceeds the remainder 11 and cannot divide it."""
    whole = {n: (n**3 - 3) // (n + 2) for n in range(-100, 101) if n != -2 and (n**3 - 3) % (n + 2) == 0}
    identity, quotient = "n^3-3=(n+2)(n^2-2n+4)-11", r"n^2-2n+4-\frac{11}{n+2}"
    written, divisors = r"$\frac{n^3-3}{n+2}$", [d for d in range(-100, 101) if d != 0 and 11 % d == 0]
    return {m for m, value in whole.items() if value > 0}, {
        "1": [equation(identity)],
        "2": [f"{written} equals ${quotient}$", all(value(quotient, n=m) * (m + 2) == m**3 - 3 for m in range(10))],
        "3": [written, "$n+2$ divides $11$", sorted(whole) == [d - 2 for d in divisors]],
        "4": [",".join(map(str, divisors)), "divide $11$"],
        "5": [written, len(whole) == 4, *(f"n={m}$" for m in whole)],
        "6": [f"{written} is ${whole[-13]}$ at $n=-13$ and ${whole[-3]}$ at $n=-3$"],
        "7": [f"{written} is ${whole[-1]}$ at $n=-1$ and ${whole[9]}$ at $n=9$"],
    }
